"""`autofit studies`: list the studies of this machine, newest first."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from autofit.cli.options.arguments import newest_studies
from autofit.cli.say import say
from autofit.errors import AutofitError


@dataclass(frozen=True, slots=True)
class _Row:
    """A study in the list; `model` is None for a study that cannot be read."""

    study: str
    model: str | None
    finished: bool
    result: str


@click.command("studies")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(*, as_json: bool) -> None:
    """List the studies in results/ and in the user's data folder, newest first.

    Each line has the name, the model and the result. `autofit show NAME` shows one of them.
    """
    rows = [_read_row(path) for path in newest_studies()]
    if as_json:
        click.echo(json.dumps({"studies": [asdict(row) for row in rows]}))
        return
    from autofit.output.text.console import make_console, print_table
    from autofit.text_format import UNKNOWN, one_line

    cells = [
        (one_line(Path(row.study).name), one_line(row.model or UNKNOWN), one_line(row.result))
        for row in rows
    ]
    if cells:
        head = ("study", "model", "result")
        print_table(make_console(sys.stdout), "", head, cells, cuts=True)
    if not rows:
        say("there is no study yet: `autofit tune MODEL` makes one", file=sys.stderr)


def _read_row(path: Path) -> _Row:
    from autofit.output.text.best_so_far_text import study_conclusion
    from autofit.session.best_so_far import find_best_so_far
    from autofit.study.study_folder import Study

    try:
        study = Study.open(path)
    except AutofitError as error:
        return _Row(str(path), None, finished=False, result=f"cannot be read: {error.message}")
    if study.result or find_best_so_far(study):
        result = study_conclusion(study).headline
    else:
        count = sum(1 for _ in (path / "trials").glob("*.json"))
        result = f"not finished, {count} launch{'es' * (count != 1)}"
    return _Row(str(path), study.header.model_name, finished=bool(study.result), result=result)
