"""A runtime's command line taken apart by what its help says of each flag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from autofit.errors import UsageError
from autofit.runtime.discovery.help_text import Flag, HelpText

FLAG = re.compile(r"--?[A-Za-z]")
_PATH_HINTS = ("FNAME", "FILE", "PATH", "DIR")
# Given several times, these add up in llama.cpp (common/arg.cpp); of others the last counts.
_JOINED = {
    "--override-tensor",
    "--spec-draft-override-tensor",
    "--override-kv",
    "--lora",
    "--lora-scaled",
    "--control-vector",
    "--control-vector-scaled",
    "--spec-type",
}
_COUNTED = {"--n-cpu-moe", "--n-cpu-ffn"}


@dataclass(frozen=True, slots=True)
class Option:
    """One flag as it was written, with its value; `value` is None where it takes none."""

    flag: Flag
    spelling: str
    value: str | None = None

    @property
    def name(self) -> str:
        """The flag's long name without dashes; the one that was written, if it was long."""
        same_sense = [s for s in self.flag.spellings if self._is_negation(s) == self.is_negative]
        long = [spelling for spelling in same_sense if spelling.startswith("--")]
        chosen = self.spelling if self.spelling in long else (long or same_sense)[-1]
        return chosen.lstrip("-")

    @property
    def positive_name(self) -> str:
        """The long name by which a flag that has a negative form is switched on."""
        long = [s for s in self.flag.spellings if s.startswith("--") and not self._is_negation(s)]
        return long[-1].lstrip("-") if long else self.name

    @property
    def is_negative(self) -> bool:
        """Whether it switches off what another spelling of the same flag switches on."""
        return self._is_negation(self.spelling)

    @property
    def canonical(self) -> tuple[str, str | None]:
        """Equal for two ways of saying the same."""
        sense = "off" if self.is_negative else None
        return self.flag.spellings[0], sense if self.value is None else self.value

    @property
    def words(self) -> tuple[str, ...]:
        """The option as words of a command line."""
        return (self.spelling,) if self.value is None else (self.spelling, self.value)

    def _is_negation(self, spelling: str) -> bool:
        # Listed as `-kvo, --kv-offload, -nkvo, --no-kv-offload`: positive spellings first.
        # `--no-host` alone switches something on.
        spellings = self.flag.spellings
        negative = [s for s in spellings if s.startswith("--no-")]
        positive = [s for s in spellings if s.startswith("--") and s not in negative]
        if not negative or not positive:
            return False
        return spelling in negative or (
            spelling in spellings and spellings.index(spelling) > spellings.index(positive[-1])
        )


def parse_options(arguments: Sequence[str], help_text: HelpText) -> tuple[Option, ...]:
    """The options of a command line without its program.

    Raises:
        UsageError: a word is no flag that the help lists, or a value is missing.
    """
    options: list[Option] = []
    words = iter(arguments)
    for word in words:
        # llama.cpp takes `--ctx_size` for `--ctx-size`.
        spelling = word.replace("_", "-") if word.startswith("--") else word
        flag = help_text.get(spelling)
        if flag is None:
            raise UsageError(
                f"the runtime's help does not list {word!r}, so no preset can carry it",
                "leave it out, or use the formats `args` or `shell`, which take any argument",
            )
        if not flag.takes_value:
            options.append(Option(flag, spelling))
            continue
        value = next(words, None)
        if value is None:
            raise UsageError(f"the value of {word} is missing", "give it one, or leave it out")
        options.append(Option(flag, spelling, value))
    return tuple(options)


def flag_groups(arguments: Sequence[str]) -> list[list[str]]:
    """The arguments cut before each flag, for one line each; needs no help text."""
    groups: list[list[str]] = []
    for word in arguments:
        if groups and not FLAG.match(word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def each_once(options: Iterable[Option]) -> tuple[Option, ...]:
    """The options with each flag once, for formats that hold a flag once."""
    merged: dict[tuple[str, ...], Option] = {}
    for option in options:
        before = merged.get(option.flag.spellings)
        merged[option.flag.spellings] = option if before is None else _merge(before, option)
    return tuple(merged.values())


def _merge(before: Option, after: Option) -> Option:
    spellings = set(after.flag.spellings)
    if before.value is None or after.value is None:
        return after
    if _JOINED & spellings:
        return Option(after.flag, after.spelling, f"{before.value},{after.value}")
    if _COUNTED & spellings:
        return max(before, after, key=lambda option: int(option.value or 0))
    return after


def with_absolute_paths(
    arguments: Sequence[str], help_text: HelpText | None, folder: Path
) -> tuple[str, ...]:
    """The arguments with values that name files made absolute, as if started in a folder.

    Words that the help does not list are left as they are.
    """
    words: list[str] = []
    flag: Flag | None = None
    for word in arguments:
        if flag is not None and flag.takes_value:
            words.append(_absolute(word, flag, folder) if _names_files(flag) else word)
            flag = None
        else:
            words.append(word)
            flag = help_text.get(word) if help_text else None
    return tuple(words)


def named_files(
    arguments: Sequence[str], help_text: HelpText | None, folder: Path
) -> tuple[Path, ...]:
    """The files that the arguments name, as if started in a folder."""
    absolute = with_absolute_paths(arguments, help_text, folder)
    files: list[Path] = []
    for flag, value in pairwise(absolute):
        known = help_text.get(flag) if help_text else None
        if known is not None and known.takes_value and _names_files(known):
            values = value.split(",") if "comma-separated" in known.text else [value]
            files += [Path(name) for name in values if name]
    return tuple(dict.fromkeys(files))


def _names_files(flag: Flag) -> bool:
    # A file's name with `--hf-file` is relative to a repository elsewhere.
    hint = flag.hint or ""
    return hint.endswith(_PATH_HINTS) and not any(s.startswith("--hf") for s in flag.spellings)


def _absolute(value: str, flag: Flag, folder: Path) -> str:
    names = value.split(",") if "comma-separated" in flag.text else [value]
    return ",".join(str(folder / name) if name else name for name in names)
