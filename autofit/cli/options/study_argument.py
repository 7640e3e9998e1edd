"""The argument STUDY: a folder, or the name of one in `results/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.study.study_folder import Study

_LISTED = 8

study_argument: Callable[..., Any] = click.argument("study", type=click.Path(path_type=Path))


def open_study(given: Path) -> Study:
    """Open a study for reading.

    Raises:
        UsageError: there is none; the hint names those that there are.
        AutofitError: its head is damaged, unreadable or from a newer autofit.
    """
    from autofit.study.study_folder import Study  # noqa: PLC0415 - heavy, and --help must be quick

    # Whoever points at study.json means its folder.
    path = given.parent if given.name == "study.json" else given
    if not path.exists() and len(given.parts) == 1:
        path = next((place / given for place in _places() if (place / given).is_dir()), path)
    if not path.exists():
        raise UsageError(f"no such study: {given}", _known())
    return Study.open(path)


def tell_damage(study: Study) -> None:
    """Say on stderr which of a study's launches cannot be read, where the output does not."""
    study.trials()
    for notice in study.notices:
        click.echo(f"notice: {notice}", err=True)


def _places() -> tuple[Path, ...]:
    """Where a tune puts its studies when nobody says."""
    from autofit.study.study_location import user_data  # noqa: PLC0415

    return Path("results"), user_data() / "studies"


def _known() -> str:
    found: list[tuple[float, Path]] = []
    for place in _places():
        try:
            heads = [*place.glob("*/study.json")]
            found += [(head.stat().st_mtime, head.parent) for head in heads]
        except OSError:
            continue
    newest = [str(path) for _, path in sorted(found, reverse=True)[:_LISTED]]
    return f"the newest: {', '.join(newest)}" if newest else "`autofit tune MODEL` makes one"
