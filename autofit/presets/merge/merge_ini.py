"""One model's section of a router's INI file, replaced line by line.

No library keeps this dialect: values end at a `;` or `#` in mid-word, keys stand before the
first section, and a key's case counts. So lines that are not replaced stay as they are, byte
for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.formats import ini
from autofit.presets.heading import without_heading
from autofit.presets.older_command import MODEL_SOURCES

_SECTION = re.compile(r"\[(?P<name>[^\]]+)\]\s*(?:[;#].*)?")
_SETTING = re.compile(r"(?P<key>[A-Za-z_][\w.-]*)(?P<equals>\s*=\s*)(?P<value>[^;#]*)(?P<rest>.*)")
_MARK = re.compile(r"\s*[;#]\s?")


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    start: int  # the line of its header
    end: int  # after its last setting


def merge(text: str, facts: PresetFacts, label: str) -> tuple[str, list[str]]:
    """The file's text with the preset's section in it, and what a user should know of it.

    Of an older section of that name, all that a tune decides gives way; what else it says
    stays.

    Raises:
        UsageError: the text is no such file.
    """
    lines = text.split("\n")
    line_end = "\r" if lines[0].endswith("\r") else ""
    sections = list(_sections(lines, label))
    name = ini.entry_name(facts)
    mine = [section for section in sections if section.name == name]
    if len(mine) > 1:
        raise UsageError(f"{label} has {len(mine)} sections [{name}]", "remove all but one")
    notices = _from_defaults(lines, sections, facts)
    heading = [line + line_end for line in ini.comments(facts)]
    if not mine:
        while lines and not lines[-1].strip():
            lines.pop()
        settings = [f"{key} = {value}" for key, value in ini.entry(facts).items()]
        added = [f"[{name}]", *settings, ""]
        gap = [line_end] if lines else []
        return "\n".join(
            [*lines, *gap, *heading, *(a + line_end for a in added[:-1]), ""]
        ), notices
    section = mine[0]
    above, below = lines[: section.start], lines[section.end :]
    body, told = _body(lines[section.start + 1 : section.end], facts, line_end)
    header = lines[section.start]
    merged = [*without_heading(above, _MARK), *heading, header, *body, *below]
    return "\n".join(merged), [*told, *notices]


def models(text: str, label: str) -> list[str]:
    """The models that a file has sections for.

    Raises:
        UsageError: the text is no such file.
    """
    found = _sections(text.split("\n"), label)
    return [section.name for section in found if section.name != ini.EVERY_MODEL]


def _sections(lines: Sequence[str], label: str) -> Iterator[_Section]:
    name, start, end = "", -1, 0
    for number, line in enumerate(lines):
        plain = line.rstrip("\r\t ").removeprefix("\ufeff")
        if not plain.strip() or _MARK.match(plain):
            continue
        header = _SECTION.fullmatch(plain)
        if header is None and _SETTING.fullmatch(plain) is None:
            raise UsageError(
                f"{label}:{number + 1}: neither [section], key = value nor comment: "
                f"{plain.strip()[:40]}",
                "llama-server could not read it either: correct it, then merge again",
            )
        if header is not None:
            if start >= 0:
                yield _Section(name, start, end)
            name, start = header["name"].strip(), number
        end = number + 1
    if start >= 0:
        yield _Section(name, start, end)


def _body(lines: Sequence[str], facts: PresetFacts, line_end: str) -> tuple[list[str], list[str]]:
    """A section's lines with the preset's settings, and what became of the others."""
    missing = {_flag(key, facts): (key, value) for key, value in ini.entry(facts).items()}
    known = set(missing)
    kept: list[str] = []
    stays, goes = [], []
    for line in lines:
        found = _SETTING.fullmatch(line.rstrip("\r"))
        if found is None:
            kept.append(line)
            continue
        flag = _flag(found["key"], facts)
        shown = f"{found['key']} = {found['value'].strip()}"
        if flag in missing:
            key, value = missing.pop(flag)
            # Where a comment follows, the blanks before it belong to it.
            gap = found["value"][len(found["value"].rstrip()) :] if found["rest"] else ""
            kept.append(f"{key}{found['equals']}{value}{gap}{found['rest']}{line_end}")
        elif flag in known or MODEL_SOURCES & set(flag):
            continue
        elif facts.decides(flag):
            goes.append(shown)
        else:
            stays.append(shown)
            kept.append(line)
    first = [f"{key} = {value}{line_end}" for key, value in missing.values()]
    notices = []
    if stays:
        notices.append(f"kept from the older section: {', '.join(stays)}")
    if goes:
        notices.append(f"gone from the older section: {', '.join(goes)}")
    return [*kept, *first], notices


def _from_defaults(
    lines: Sequence[str], sections: Sequence[_Section], facts: PresetFacts
) -> list[str]:
    """What the section for every model adds to this one."""
    said = {_flag(key, facts) for key in ini.entry(facts)}
    added = []
    for section in sections:
        if section.name == ini.EVERY_MODEL:
            found = (
                _SETTING.fullmatch(line.rstrip("\r"))
                for line in lines[section.start : section.end]
            )
            added += [
                f"{setting['key']} = {setting['value'].strip()}"
                for setting in found
                if setting is not None and _flag(setting["key"], facts) not in said
            ]
    if not added:
        return []
    return [f"the section [{ini.EVERY_MODEL}] adds to this model: {', '.join(added)}"]


def _flag(key: str, facts: PresetFacts) -> tuple[str, ...]:
    """The same for every key that says the same."""
    if facts.help is not None:
        for spelling in (f"--{key}", f"-{key}"):
            flag = facts.help.get(spelling)
            if flag is not None:
                return flag.spellings
        by_variable = (flag for flag in facts.help.flags.values() if flag.env == key)
        flag = next(by_variable, None)
        if flag is not None:
            return flag.spellings
    return (key,)
