"""The preset that a tune wrote, as text to be shown and copied."""

from __future__ import annotations

from pathlib import Path

from autofit.study.study_folder import Study


def preset_text(study: Study) -> str:
    """The text of the preset that the study's result names, empty where there is none."""
    named = (study.result or {}).get("preset")
    if not named:
        return ""
    # A study that was moved has it in its own folder still.
    for path in (study.path / "presets" / Path(named).name, study.path / named):
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return ""
