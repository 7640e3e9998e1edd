"""A regression that a sweep has found, for a search of the build that caused it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.input_files import read_json
from autofit.sweep.night_folder import NightFolder
from autofit.sweep.verdict import REGRESSIONS

_DAMAGED = (KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Regression:
    """A regression of one entry.

    Attributes:
        command: the measured settings as a launch command for a shell.
        metric: the metric of the regression, as in the verdicts of a sweep.
        builds: the version texts of the baseline's build and tonight's; empty if unknown.
    """

    entry: str
    command: str
    metric: str
    builds: tuple[str, str]


def find_regression(folder: Path, entry: str | None = None) -> Regression:
    """Return the regression of an entry in a sweep's folder, by default of the first with one.

    Raises:
        UsageError: it is no folder of a finished sweep, or the entry has no regression there.
        AutofitError: the entry's record is damaged.
    """
    night = NightFolder.open(folder)
    found = [
        one
        for one in _read_verdicts(folder)
        if one["verdict"] == "regression" and entry in (None, one["name"])
    ]
    if not found:
        what = f"the entry {entry}" if entry else "this sweep"
        raise UsageError(f"{folder}: {what} has no regression", "name another sweep or --entry")
    chosen = found[0]
    worse = [metric for metric in chosen["metrics"] if metric["verdict"] in REGRESSIONS]
    record = night.record(chosen["name"])
    if record is None or record.winner is None or not worse:
        raise UsageError(
            f"{folder}: {chosen['name']} has no settings of a server", "give a preset instead"
        )
    first = min(worse, key=lambda metric: 1.0 if metric.get("p") is None else metric["p"])
    variables = [f"{name}={value}" for name, value in record.winner.env.items()]
    before, now = chosen.get("builds") or ("", "")
    return Regression(
        chosen["name"],
        shlex.join(["env", *variables, *record.winner.argv] if variables else record.winner.argv),
        str(first["metric"]),
        (str(before), str(now)),
    )


def _read_verdicts(folder: Path) -> list[Mapping[str, Any]]:
    path = folder / "verdicts.json"
    try:
        entries = read_json(path)["entries"]
        return [{"name": one["name"], **one, "metrics": list(one["metrics"])} for one in entries]
    except FileNotFoundError as error:
        raise UsageError(
            f"{folder} has no verdicts yet", "finish the sweep with --resume"
        ) from error
    except (OSError, *_DAMAGED) as error:
        raise UsageError(
            f"{path} cannot be read: {' '.join(str(error).split())}", "run the sweep again"
        ) from error
