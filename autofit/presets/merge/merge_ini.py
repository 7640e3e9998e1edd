"""One model's section of a router's INI file, replaced line by line.

No library reads this dialect: a value ends at a `;` or `#` within a word, keys may come before the
first section, and the case of keys matters. Lines that are not replaced stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.presets.command_options import MODEL_SOURCES
from autofit.presets.formats import ini
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import without_heading

_COMMENT = re.compile(r"\s*[;#]\s?")


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    start: int  # the line of its header
    end: int  # after its last setting


def merge_section(text: str, preset: Preset, label: str) -> tuple[str, list[str]]:
    """Return the file's text with the preset's section in it, and notices for the user.

    In an older section of that name, settings that a tune may choose are replaced or removed;
    all others stay.

    Raises:
        UsageError: the text is not such a file.
    """
    lines = text.split("\n")
    line_end = "\r" if lines[0].endswith("\r") else ""
    sections = list(_sections(lines, label))
    name = ini.section_name(preset)
    same_name = [section for section in sections if section.name == name]
    if len(same_name) > 1:
        raise UsageError(f"{label} has {len(same_name)} sections [{name}]", "remove all but one")
    heading = [line + line_end for line in ini.comments(preset)]
    if same_name:
        section = same_name[0]
        settings, notices = _merged_settings(
            lines[section.start + 1 : section.end], preset, line_end
        )
        above = without_heading(lines[: section.start], _COMMENT)
        header, below = lines[section.start], lines[section.end :]
        merged = [*above, *heading, header, *settings, *below]
    else:
        while lines and not lines[-1].strip():
            lines.pop()
        gap = [line_end] if lines else []
        settings = [f"{key} = {value}" for key, value in ini.section_settings(preset).items()]
        section_lines = (line + line_end for line in (f"[{name}]", *settings))
        merged, notices = [*lines, *gap, *heading, *section_lines, ""], []
    defaults = _default_settings(text.split("\n"), sections, preset)
    if defaults:
        notices.append(
            f"the section [{ini.EVERY_MODEL}] also applies to this model: {', '.join(defaults)}"
        )
    return "\n".join(merged), notices


def section_names(text: str, label: str) -> list[str]:
    """Return the models that a file has sections for.

    Raises:
        UsageError: the text is not such a file.
    """
    sections = _sections(text.split("\n"), label)
    return [section.name for section in sections if section.name != ini.EVERY_MODEL]


def _sections(lines: Sequence[str], label: str) -> Iterator[_Section]:
    name, start, end = "", -1, 0
    for number, line in enumerate(lines):
        plain = line.rstrip("\r\t ").removeprefix("\ufeff")
        if not plain.strip() or _COMMENT.match(plain):
            continue
        header = ini.SECTION.fullmatch(plain)
        if header is None and ini.SETTING.fullmatch(plain) is None:
            raise UsageError(
                f"{label}:{number + 1}: this is not a [section], key = value or comment: "
                f"{plain.strip()[:40]}",
                "llama-server cannot read it either: correct it, then merge again",
            )
        if header is not None:
            if start >= 0:
                yield _Section(name, start, end)
            name, start = header["name"].strip(), number
        end = number + 1
    if start >= 0:
        yield _Section(name, start, end)


def _merged_settings(
    lines: Sequence[str], preset: Preset, line_end: str
) -> tuple[list[str], list[str]]:
    """Return an older section's lines with the preset's settings, and notices for the user."""
    missing = {_spellings(k, preset): (k, v) for k, v in ini.section_settings(preset).items()}
    own = set(missing)
    merged: list[str] = []
    kept: list[str] = []
    removed: list[str] = []
    for line in lines:
        found = ini.SETTING.fullmatch(line.rstrip("\r"))
        if found is None:
            merged.append(line)
            continue
        spellings = _spellings(found["key"], preset)
        if spellings in missing:
            key, value = missing.pop(spellings)
            merged.append(f"{key}{found['equals']}{value}{found['rest']}{line_end}")
        elif spellings in own or not MODEL_SOURCES.isdisjoint(spellings):
            continue
        elif preset.is_tunable(spellings):
            removed.append(_plain(found))
        else:
            kept.append(_plain(found))
            merged.append(line)
    merged += [f"{key} = {value}{line_end}" for key, value in missing.values()]
    notices = []
    if kept:
        notices.append(f"kept from the older section: {', '.join(kept)}")
    if removed:
        notices.append(f"removed from the older section: {', '.join(removed)}")
    return merged, notices


def _default_settings(
    lines: Sequence[str], sections: Sequence[_Section], preset: Preset
) -> list[str]:
    """Return the settings of the section for every model that the preset does not have."""
    own = {_spellings(key, preset) for key in ini.section_settings(preset)}
    return [
        _plain(found)
        for section in sections
        if section.name == ini.EVERY_MODEL
        for line in lines[section.start : section.end]
        if (found := ini.SETTING.fullmatch(line.rstrip("\r")))
        and _spellings(found["key"], preset) not in own
    ]


def _plain(setting: re.Match[str]) -> str:
    return f"{setting['key']} = {setting['value']}"


def _spellings(key: str, preset: Preset) -> tuple[str, ...]:
    """Return the flag's spellings, which are the same for every key that means the same."""
    if preset.help is not None:
        for spelling in (f"--{key}", f"-{key}"):
            flag = preset.help.get(spelling)
            if flag is not None:
                return flag.spellings
        for flag in preset.help.flags.values():
            if flag.env == key:
                return flag.spellings
    return (key,)
