"""What a shell completes for an option: names of files that are looked up by name.

A shell asks by running the program again, so nothing heavy is read; see README.md for how it
is switched on.
"""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_of(kind: str) -> Completer:
    """A completer for the definitions of a kind: a name, or a file where the word is a path."""

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


def parameter_pins(
    _ctx: click.Context, _option: click.Parameter, word: str
) -> list[CompletionItem]:
    """The parameters that any runtime has, as the `NAME=` of `--set`."""
    if "=" in word:
        return []
    from autofit.runtime.dialect.dialect_file import load_all_dialects  # noqa: PLC0415 - heavy

    known = {name for dialect in load_all_dialects().values() for name in dialect.parameters}
    return [CompletionItem(f"{name}=") for name in sorted(known) if name.startswith(word)]
