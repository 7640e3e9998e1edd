"""Printing of errors, and of texts that may contain what others wrote: names, logs, answers."""

from __future__ import annotations

from typing import TextIO

import click

from autofit.errors import AutofitError
from autofit.text_format import one_line


def say(text: str, *, err: bool = False, file: TextIO | None = None, bold: bool = False) -> None:
    """Print a text whose lines have no effect on a terminal: control characters become escapes."""
    plain = "\n".join(map(one_line, text.split("\n")))
    click.echo(click.style(plain, bold=True) if bold else plain, err=err, file=file)


def report(error: AutofitError) -> int:
    """Print an error and its hint on stderr, and return its exit code."""
    say(f"autofit: {error.message}", err=True)
    if error.hint:
        say(f"hint: {error.hint}", err=True)
    return error.exit_code
