"""Completion of the values of options in a shell.

A shell runs autofit at each press of Tab, so that nothing here starts a runtime.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

# The parameters whose values are KV types.
_KV_PARAMS = ("cache_type_k", "cache_type_v")
# Devices of more studies than these are probably no longer here.
_STUDIES = 5
_BASH_BREAKS = ("=", ":")


def complete_words(words: Callable[[], Iterable[str]], *, is_list: bool = False) -> Completer:
    """Return a function that completes words, or the last word of a list with commas."""

    def complete(_ctx: click.Context, _option: click.Parameter, word: str) -> list[CompletionItem]:
        before, comma, last = word.rpartition(",") if is_list else ("", "", word)
        return [
            CompletionItem(f"{before}{comma}{one}")
            for one in dict.fromkeys(words())
            if one.startswith(last)
        ]

    return complete


def complete_names(kind: str) -> Completer:
    """Return a function that completes paths, and names of a kind of YAML file."""

    def complete(_ctx: click.Context, _option: click.Parameter, word: str) -> list[CompletionItem]:
        from autofit import yaml_files  # noqa: PLC0415 - heavy, --help is quick

        if "/" in word or word.startswith("."):
            return [CompletionItem(word, type="file")]
        return [
            CompletionItem(name, help=str(path.parent))
            for name, path in sorted(yaml_files.available(kind).items())
            if name.startswith(word)
        ]

    return complete


def complete_tables(
    _ctx: click.Context, _option: click.Parameter, word: str
) -> list[CompletionItem]:
    """Return the names of recorded tables that begin with some text, or else paths."""
    from autofit.replay.recorded_table import find_tables  # noqa: PLC0415 - heavy, --help is quick

    found = [CompletionItem(name) for name in sorted(find_tables()) if name.startswith(word)]
    return found or [CompletionItem(word, type="file")]


def complete_parameters(
    _ctx: click.Context, _option: click.Parameter, word: str
) -> list[CompletionItem]:
    """Return the parameters of all runtimes as `NAME=` for `--set`, or the values of one."""
    from autofit.runtime.dialect.dialect_file import load_all_dialects  # noqa: PLC0415 - heavy

    dialects = load_all_dialects().values()
    name, equals, value = word.partition("=")
    if not equals:
        known = {name for dialect in dialects for name in dialect.parameters}
        return [CompletionItem(f"{one}=") for one in sorted(known) if one.startswith(word)]
    values: dict[str, None] = dict.fromkeys(kv_types() if name in _KV_PARAMS else ())
    for parameter in (dialect.parameters.get(name) for dialect in dialects):
        if parameter is not None:
            values |= dict.fromkeys(("on", "off") if parameter.type == "boolean" else ())
            values |= dict.fromkeys(key for s in parameter.spellings for key in s.words or ())
    return [CompletionItem(f"{name}={one}") for one in values if one.startswith(value)]


def kv_types() -> tuple[str, ...]:
    """Return the types of the KV cache."""
    from autofit.model.sizes.kv_cache import KV_TYPES  # noqa: PLC0415 - heavy, --help is quick

    return KV_TYPES


def layouts() -> list[str]:
    """Return the names of layouts, with those of single devices."""
    from autofit.model.placement.layout import LAYOUTS, SINGLE  # noqa: PLC0415 - heavy

    return [*LAYOUTS, SINGLE.rstrip(":"), *(f"{SINGLE}{name}" for name in devices())]


def devices() -> list[str]:
    """Return the devices of the newest studies, and of this machine's NVIDIA cards."""
    from autofit.machine.nvml import find_nvidia_gpus  # noqa: PLC0415 - heavy, --help is quick

    cards = (f"CUDA{index}" for index, _ in enumerate(find_nvidia_gpus()))
    return list(dict.fromkeys((*_recorded_devices(), *cards)))


def _recorded_devices() -> Iterator[str]:
    from autofit.cli.options.arguments import newest_studies  # noqa: PLC0415 - heavy
    from autofit.errors import AutofitError  # noqa: PLC0415
    from autofit.study.study_folder import Study  # noqa: PLC0415

    for path in newest_studies()[:_STUDIES]:
        with contextlib.suppress(AutofitError):
            for device in Study.open(path).header.environment.devices:
                yield device.partition(":")[0]


class WholeWordBash(BashComplete):
    """Completion for bash, which ends words at `=` and `:`, as in `cache_type_k=q8_0`."""

    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one at it."""
        words = split_arg_string(os.environ["COMP_WORDS"])
        at = int(os.environ["COMP_CWORD"])
        joined: list[str] = []
        is_joined = False
        for word in words[: at + 1]:
            is_break = word in _BASH_BREAKS
            is_joined = bool(joined) and (is_break or is_joined)
            before = joined.pop() if is_joined else ""
            # Bash replaces only what comes after the last `=` or `:`.
            self._before = before + word if is_break else before
            joined.append(before + word)
            is_joined = is_break
        if len(words) <= at:
            self._before = ""
            joined.append("")
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for bash, without what is in the command line already."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


def register_bash() -> None:
    """Let bash use this class instead of click's."""
    add_completion_class(WholeWordBash)
