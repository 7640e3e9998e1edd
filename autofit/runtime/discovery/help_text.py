"""The flags that a program's `--help` lists.

Three layouts are known: llama.cpp's (options in column 0, text in column 40), llama-bench's
(indented options) and ik_llama.cpp's (options indented by two, text in column 34). An option
begins with its spellings, separated by commas. One space and a value hint may follow. At
least two spaces or the end of the line separate the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

# A line that is indented further belongs to the text of the option above.
_DEEPEST_OPTION = 20
_SPELLING = re.compile(r"(--?[A-Za-z][\w.-]*)(\(s\))?")
_BETWEEN = re.compile(r",\s*(?=-)| (?=--)")
_BULLET = re.compile(r"^\s*- ([\w+.-]+)(?: \(default\))?:", re.MULTILINE)
_CHOICES = re.compile(r"^(?:[\[<(]([\w+.-]+(?:\|[\w+.-]+)+)[\]>)]|\{([\w+.-]+(?:,[\w+.-]+)+)\})$")
_ALLOWED = re.compile(r"allowed values: ((?:[\w.]+, )*[\w.]+)")
_ENV = re.compile(r"\(env: (\w+)\)")
_DEFAULT = re.compile(r"\(.*?default: '?([^,;)']+)'?")
_HINT_END = re.compile(r"  | (?=\(default: )")


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a program.

    `hint` names its value; None for a switch. `allowed` are the values that the help lists,
    if any. `text` is its description on one line.
    """

    spellings: tuple[str, ...]
    hint: str | None
    text: str
    env: str | None = None
    default: str | None = None
    allowed: tuple[str, ...] = ()

    @property
    def is_removed(self) -> bool:
        """True if the program only recognises the flag to refuse it."""
        return "has been removed" in self.text

    @property
    def takes_value(self) -> bool:
        """True if a value follows the flag."""
        return self.hint is not None

    def synonyms(self, spelling: str) -> tuple[str, ...]:
        """Return the spellings with the same meaning as this one.

        An option such as `-kvo, --kv-offload, -nkvo, --no-kv-offload` has two meanings. The
        second begins with `--no-` and the short spellings before it.
        """
        words = self.spellings
        first_no = next((i for i, word in enumerate(words) if word.startswith("--no-")), 0)
        while first_no > 0 and words[first_no - 1].startswith("-n"):
            first_no -= 1
        on, off = words[:first_no], words[first_no:]
        return on if spelling in on else off


@dataclass(frozen=True, slots=True)
class HelpText:
    """The flags of a program by spelling, and the whole text."""

    text: str
    flags: Mapping[str, Flag] = field(default_factory=dict)

    def get(self, spelling: str) -> Flag | None:
        """Return the flag of a spelling, or None if it is not listed or has been removed."""
        flag = self.flags.get(spelling)
        return None if flag is None or flag.is_removed else flag

    def __contains__(self, spelling: str) -> bool:
        return self.get(spelling) is not None

    def synonyms(self, spelling: str) -> tuple[str, ...]:
        """Return the spellings with the same meaning as this one, itself included."""
        flag = self.flags.get(spelling)
        return flag.synonyms(spelling) if flag else (spelling,)

    def filter_words(self, words: Iterable[str], other: HelpText) -> tuple[str, ...]:
        """Return the flags of another program's command that this one accepts, with values."""
        kept: list[str] = []
        rest = iter(words)
        for word in rest:
            flag = self.get(word) or other.get(word)
            value = [next(rest, "")] if flag is not None and flag.takes_value else []
            if word in self:
                kept += [word, *value]
        return tuple(kept)


@lru_cache(maxsize=16)
def parse_help(text: str) -> HelpText:
    """Parse a help text; a text without options has no flags."""
    flags: dict[str, Flag] = {}
    for head, body in _split_options(text):
        flag = _parse_flag(head, body)
        for spelling in flag.spellings:
            flags.setdefault(spelling, flag)
    return HelpText(text, MappingProxyType(flags))


def _split_options(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the first line of each option and the lines of text below it."""
    head, body = "", list[str]()
    for line in text.splitlines():
        start = line.lstrip()
        is_option = _SPELLING.match(start) and len(line) - len(start) < _DEEPEST_OPTION
        is_text = line.startswith(" ") and not is_option
        if not is_text and head:
            yield head, body
            head, body = "", []
        if is_option:
            head = start
        elif head:
            body.append(line.strip())
    if head:
        yield head, body


def _parse_flag(head: str, body: list[str]) -> Flag:
    spellings, rest = _split_spellings(head)
    hint, text = None, rest.strip()
    if rest.startswith(" ") and not rest.startswith("  "):
        hint, text = (*_HINT_END.split(rest[1:], maxsplit=1), "")[:2]
    lines = [text.strip(), *body] if text.strip() else body
    joined = " ".join(lines)
    env, default = _ENV.search(joined), _DEFAULT.search(joined)
    return Flag(
        spellings=spellings,
        hint=hint.strip() or None if hint else None,
        text=joined,
        env=env[1] if env else None,
        default=default[1] if default else None,
        allowed=_find_allowed(hint, lines),
    )


def _split_spellings(head: str) -> tuple[tuple[str, ...], str]:
    spellings: list[str] = []
    position = 0
    while match := _SPELLING.match(head, position):
        spellings.append(match[1])
        if match[2]:
            spellings.append(match[1] + "s")
        position = match.end()
        between = _BETWEEN.match(head, position)
        if not between:
            break
        position = between.end()
    return tuple(spellings), head[position:].removeprefix(",")


def _find_allowed(hint: str | None, lines: list[str]) -> tuple[str, ...]:
    listed = _ALLOWED.search(" ".join(lines))
    if listed:
        return tuple(listed[1].split(", "))
    choices = _CHOICES.match((hint or "").strip())
    if choices:
        return tuple((choices[1] or choices[2]).replace(",", "|").split("|"))
    return tuple(_BULLET.findall("\n".join(lines))) if hint else ()
