"""Find runtimes on this machine, their dialect, abilities and devices."""
