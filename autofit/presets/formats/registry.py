"""The preset formats by name; a new format is a module with a `FORMAT` and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.errors import UsageError
from autofit.presets.formats import (
    batch,
    compose,
    env,
    ini,
    llama_swap,
    powershell,
    preset_json,
    shell,
    systemd,
)
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.preset import Preset

# A file is read in the first format that recognizes it, and else as shell text.
FORMATS: Mapping[str, PresetFormat] = {
    "ini": ini.FORMAT,
    "llama-swap": llama_swap.FORMAT,
    "shell": shell.FORMAT,
    "systemd": systemd.FORMAT,
    "compose": compose.FORMAT,
    "env": env.FORMAT,
    "json": preset_json.FORMAT,
    "args": shell.ARGS_FORMAT,
    "bat": batch.FORMAT,
    "powershell": powershell.FORMAT,
}


def find_format(name: str) -> PresetFormat:
    """Return the format of a name.

    Raises:
        UsageError: there is no such format.
    """
    if name not in FORMATS:
        raise UsageError(f"unknown format '{name}'", f"known: {', '.join(FORMATS)}")
    return FORMATS[name]


def recognize_format(file: PresetFile) -> str:
    """Return the name of a file's format.

    Raises:
        ValueError, TypeError: a JSON file is damaged, or not an object.
        UsageError: a YAML file is damaged, or of no known format.
    """
    for name, known in FORMATS.items():
        if known.recognizes(file):
            return name
    if file.data is not None:
        raise UsageError(
            f"{file.path} has neither `models` (llama-swap) nor `services` (compose)",
            "give a configuration of llama-swap, or a compose file",
        )
    return "shell"


def write_preset(format_name: str, *presets: Preset) -> str:
    """Return the text of one preset, or of several in one file.

    Raises:
        UsageError: the format is unknown, or cannot hold these settings.
    """
    known = find_format(format_name)
    for preset in presets:
        usable = preset.rules.formats
        if format_name not in usable:
            raise UsageError(
                f"the runtime of this preset cannot use the format '{format_name}'",
                f"it can use {', '.join(name for name in FORMATS if name in usable)}",
            )
    if len(presets) > 1 and not known.holds_several:
        several = ", ".join(name for name, one in FORMATS.items() if one.holds_several)
        raise UsageError(
            f"a file of the format '{format_name}' holds one model",
            f"for several models in one file use {several}",
        )
    return known.write(presets)
