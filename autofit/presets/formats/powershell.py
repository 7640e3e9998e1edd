"""Scripts of PowerShell that start a server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autofit.presets.command_options import flag_groups
from autofit.presets.formats.powershell_parser import QUOTES, START_PROCESS, parse_powershell
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.formats.shell import servers_among
from autofit.presets.formats.windows_words import refuse_unwritable, split_words
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading
from autofit.presets.server_entry import ServerEntry

_PLAIN = re.compile(r"--?[A-Za-z][\w-]*|[A-Za-z]\w*|\d{1,9}", re.ASCII)
# Older versions pass these to a program wrongly: an empty argument, a quote, and a backslash
# at the end of an argument with spaces.
_NEEDS_NEW = re.compile(r'|.*".*|.*\s.*\\', re.DOTALL)
_NEW = "#Requires -Version 7.3"
_BYTE_ORDER_MARK = "\ufeff"
_SWITCHES_WITH_VALUE = frozenset(
    {"windowstyle", "redirectstandardoutput", "redirectstandarderror", "redirectstandardinput"}
    | {"verb", "credential", "environment"}
)


def _write(presets: Sequence[Preset]) -> str:
    """Return a script that starts the server and passes its arguments on.

    Raises:
        UsageError: PowerShell cannot hold a value.
    """
    (preset,) = presets
    refuse_unwritable(preset, "powershell", allowed_controls="\t\n\r")
    program = [*preset.wrapper, *preset.command]
    groups = [program, *flag_groups(preset.served_arguments)]
    words = (" ".join(map(_word, group)) for group in groups)
    needs_new = any(_NEEDS_NEW.fullmatch(word) for word in preset.argv)
    lines = [
        *([_NEW] if needs_new else []),
        *(f"# {line}" for line in heading(preset)),
        *(f"$env:{name} = {_quoted(value)}" for name, value in preset.env.items()),
        " `\n  ".join(["& " + next(words), *words, "@args"]),
    ]
    text = "\n".join(lines) + "\n"
    # Windows PowerShell 5 takes a file without the mark for one in the system's code page.
    return text if text.isascii() else _BYTE_ORDER_MARK + text


def _word(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else _quoted(word)


def _quoted(text: str) -> str:
    return "'" + re.sub(f"[{QUOTES}]", r"\g<0>\g<0>", text) + "'"


def _read(file: PresetFile) -> list[ServerEntry]:
    commands = parse_powershell(file.text, file.path.absolute().parent)
    return servers_among(map(_without_start, commands))


def _without_start(command: ServerEntry) -> ServerEntry:
    """Return the command that `Start-Process` starts, or any other command as it is."""
    if command.argv[:1] and command.argv[0].lower() in START_PROCESS:
        words, place = _started(command.argv[1:])
        folder = Path(command.folder or "", place) if place else command.folder
        return replace(command, argv=tuple(words), folder=folder)
    return command


def _started(words: Sequence[str]) -> tuple[list[str], str]:
    """Return program with arguments, and folder, from the words after `Start-Process`."""
    program, arguments, folder = "", list[str](), ""
    parameter = ""
    for word in words:
        if word.startswith("-") and parameter not in ("argumentlist", "args"):
            parameter = word[1:].lower()
            continue
        if parameter == "workingdirectory":
            folder = word
        elif parameter == "filepath" or (not program and parameter in ("", "nonewwindow", "wait")):
            program = word
        elif parameter not in _SWITCHES_WITH_VALUE:
            # It joins the list with spaces, and the program splits the line again.
            arguments += split_words(word)
            continue
        parameter = ""
    return [*([program] if program else []), *arguments], folder


FORMAT = PresetFormat(
    suffix=".ps1",
    write=_write,
    recognizes=lambda file: file.path.suffix.lower() == ".ps1",
    read=_read,
)
