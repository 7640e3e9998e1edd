"""A runtime's command line as options, interpreted with the runtime's help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PureWindowsPath

from autofit.errors import UsageError
from autofit.runtime.discovery.help_text import Flag, HelpText

_FLAG = re.compile(r"--?[A-Za-z]")
_PATH_HINTS = ("FNAME", "FILE", "PATH", "DIR")
# Given several times, these add up in llama.cpp (common/arg.cpp); of others the last counts.
_ADDED_UP = {
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

# Flags that place tensors. The first pattern that matches a tensor decides.
OVERRIDE_TENSOR = "--override-tensor"
CPU_MOE = "--cpu-moe"
N_CPU_MOE = "--n-cpu-moe"
N_CPU_FFN = "--n-cpu-ffn"
OVERRIDES = (OVERRIDE_TENSOR, CPU_MOE, N_CPU_MOE, N_CPU_FFN)
# Flags that say where a model comes from; a preset's model is a file.
MODEL_SOURCES = frozenset({"--hf-repo", "--hf-file", "--model-url", "--docker-repo"})
# llama.cpp common/common.h: LLM_FFN_EXPS_REGEX and what arg.cpp makes of the flags.
_EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"ffn_(up|down|gate)\."


@dataclass(frozen=True, slots=True)
class Option:
    """One flag as it was written, with its value, or None for a flag without a value."""

    flag: Flag
    spelling: str
    value: str | None = None

    @property
    def name(self) -> str:
        """The flag's long name without dashes: the written one if it is long, else the first."""
        same_sense = [s for s in self.flag.spellings if self._is_negation(s) == self.is_negative]
        long = [spelling for spelling in same_sense if spelling.startswith("--")]
        chosen = self.spelling if self.spelling in long else (long or same_sense)[-1]
        return chosen.lstrip("-")

    @property
    def positive_name(self) -> str:
        """The long name that switches the setting on, for a flag that also has a negative form."""
        long = [s for s in self.flag.spellings if s.startswith("--") and not self._is_negation(s)]
        return long[-1].lstrip("-") if long else self.name

    @property
    def is_negative(self) -> bool:
        """True if the written spelling switches the setting off, as `--no-mmap` does."""
        return self._is_negation(self.spelling)

    @property
    def canonical(self) -> tuple[str, str | None]:
        """A pair that is equal for two spellings of the same setting."""
        sense = "off" if self.is_negative else None
        return self.flag.spellings[0], sense if self.value is None else self.value

    @property
    def arguments(self) -> tuple[str, ...]:
        """The option as arguments of a command line."""
        return (self.spelling,) if self.value is None else (self.spelling, self.value)

    @property
    def override_kind(self) -> str | None:
        """The kind of override among `OVERRIDES`, or None for any other option."""
        return next((kind for kind in OVERRIDES if kind in self.flag.spellings), None)

    def _is_negation(self, spelling: str) -> bool:
        # Listed as `-kvo, --kv-offload, -nkvo, --no-kv-offload`. A lone `--no-host` switches on.
        long = (s for s in self.flag.spellings if s.startswith("--") and s[:5] != "--no-")
        positive = next(long, spelling)
        return spelling not in self.flag.synonyms(positive)


def parse_options(arguments: Sequence[str], help_text: HelpText) -> tuple[Option, ...]:
    """Return the options of a command line without its program.

    Raises:
        UsageError: the help does not list an argument, or a value is missing.
    """
    options: list[Option] = []
    rest = iter(arguments)
    for argument in rest:
        spelling = _with_dashes(argument)
        flag = help_text.get(spelling)
        if flag is None:
            raise UsageError(
                f"this format cannot hold {argument!r}: the runtime's help does not list it",
                "leave it out, or use the formats `args` or `shell`, which take any argument",
            )
        if not flag.takes_value:
            options.append(Option(flag, spelling))
            continue
        value = next(rest, None)
        if value is None:
            raise UsageError(f"the value of {argument} is missing", "give it one, or leave it out")
        options.append(Option(flag, spelling, value))
    return tuple(options)


def unlisted_flags(arguments: Sequence[str], help_text: HelpText) -> Iterator[str]:
    """Yield the flags that the help does not list: misspelled, or of another build."""
    rest = iter(arguments if help_text.flags else ())
    for argument in rest:
        spelling, equals, _ = argument.partition("=")
        spelling = _with_dashes(spelling)
        flag = help_text.get(spelling)
        if flag is None and _FLAG.match(argument):
            yield spelling
        elif flag is not None and flag.takes_value and not equals:
            next(rest, None)


def _with_dashes(spelling: str) -> str:
    # llama.cpp takes `--ctx_size` for `--ctx-size`.
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling


def flag_groups(arguments: Sequence[str]) -> list[list[str]]:
    """Split arguments before each flag, for one line per flag; needs no help text."""
    groups: list[list[str]] = []
    for argument in arguments:
        if groups and not _FLAG.match(argument):
            groups[-1].append(argument)
        else:
            groups.append([argument])
    return groups


def merge_repeated(options: Iterable[Option]) -> tuple[Option, ...]:
    """Return the options with each flag once, as llama.cpp combines repeated flags."""
    merged: dict[tuple[str, ...], Option] = {}
    for option in options:
        before = merged.get(option.flag.spellings)
        merged[option.flag.spellings] = option if before is None else _merge(before, option)
    return tuple(merged.values())


def _merge(before: Option, after: Option) -> Option:
    spellings = set(after.flag.spellings)
    if before.value is None or after.value is None:
        return after
    if _ADDED_UP & spellings:
        return Option(after.flag, after.spelling, f"{before.value},{after.value}")
    if _COUNTED & spellings:
        return max(before, after, key=lambda option: int(option.value or 0))
    return after


def keep_override_order(
    options: Sequence[Option], applied: Sequence[str], help_text: HelpText
) -> tuple[Option, ...]:
    """Rewrite tensor overrides so that their order of application does not change placements.

    On a command line overrides take effect in the order given. A format or runtime that
    applies them in the order `applied` may change what they do. In that case all overrides
    become one `--override-tensor` at the place of the first.
    """
    ranks = [applied.index(option.override_kind) for option in options if option.override_kind]
    flag = help_text.get(OVERRIDE_TENSOR)
    if flag is None or all(first <= second for first, second in pairwise(ranks)):
        return tuple(options)
    patterns = ",".join(filter(None, map(_override_pattern, options)))
    kept: list[Option] = []
    for option in options:
        if option.override_kind is None:
            kept.append(option)
        elif patterns:
            kept.append(Option(flag, OVERRIDE_TENSOR, patterns))
            patterns = ""
    return tuple(kept)


def _override_pattern(option: Option) -> str:
    kind, value = option.override_kind, option.value or ""
    if kind == OVERRIDE_TENSOR:
        return value
    if kind == CPU_MOE:
        return rf"\.{_EXPERTS}=CPU"
    if kind in (N_CPU_MOE, N_CPU_FFN) and int(value) > 0:
        blocks = "|".join(str(block) for block in range(int(value)))
        return rf"blk\.({blocks})\.{_EXPERTS if kind == N_CPU_MOE else _DENSE}=CPU"
    return ""


def with_absolute_paths(
    arguments: Sequence[str], help_text: HelpText | None, folder: Path
) -> tuple[str, ...]:
    """Return the arguments with file names made absolute, as if started in `folder`.

    Arguments that the help does not list are unchanged.
    """
    made: list[str] = []
    flag: Flag | None = None
    for argument in arguments:
        if flag is not None and flag.takes_value:
            made.append(_absolute(argument, flag, folder) if _names_files(flag) else argument)
            flag = None
        else:
            made.append(argument)
            flag = help_text.get(argument) if help_text else None
    return tuple(made)


def named_files(
    arguments: Sequence[str], help_text: HelpText | None, folder: Path
) -> tuple[Path, ...]:
    """Return the paths of files in the arguments, as if started in `folder`."""
    files: list[Path] = []
    for flag, value in pairwise(with_absolute_paths(arguments, help_text, folder)):
        known = help_text.get(flag) if help_text else None
        if known is not None and known.takes_value and _names_files(known):
            files += [Path(name) for name in _file_names(value, known) if name]
    return tuple(dict.fromkeys(files))


def _names_files(flag: Flag) -> bool:
    # A file's name with `--hf-file` is relative to a repository elsewhere.
    hint = flag.hint or ""
    return hint.endswith(_PATH_HINTS) and not any(s.startswith("--hf") for s in flag.spellings)


def _file_names(value: str, flag: Flag) -> list[str]:
    return value.split(",") if "comma-separated" in flag.text else [value]


def _absolute(value: str, flag: Flag, folder: Path) -> str:
    return ",".join(
        str(absolute_path(folder, name)) if name else name for name in _file_names(value, flag)
    )


def absolute_path(folder: Path, name: str) -> Path:
    """Return a path as if named in `folder`; an absolute one of Windows is not changed."""
    return Path(name) if PureWindowsPath(name).drive else folder / name
