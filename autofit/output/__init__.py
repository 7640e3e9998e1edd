"""Output for people and for CI: console, live view, reports. Presets are in `presets/`."""
