"""The header of a study: the conditions that make its trials comparable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autofit.study.fingerprint import Environment
from autofit.trial.workload import Request, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHeader:
    """The head of `study.json`.

    `space` is the search space as data. `options` are the user's other choices that change the
    launches or their evaluation (pinned parameters, devices, limits of the objective, arguments
    for the runtime). `created_at` is seconds since the epoch. `argv` is autofit's own command.
    """

    autofit_version: str
    created_at: float
    model_path: str
    model_name: str
    runtime_path: str
    dialect: str
    space: Mapping[str, Any]
    workload: Workload
    objective: str
    environment: Environment
    seed: int
    argv: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dialect_source(self) -> str:
        """The file of a user's own dialect if it still exists, otherwise the dialect's name."""
        own = self.options.get("dialect_file")
        return own if own and Path(own).is_file() else self.dialect

    def to_dict(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        return {
            "autofit_version": self.autofit_version,
            "created_at": self.created_at,
            "model_path": self.model_path,
            "model_name": self.model_name,
            "runtime_path": self.runtime_path,
            "dialect": self.dialect,
            "space": dict(self.space),
            "workload": asdict(self.workload),
            "objective": self.objective,
            "environment": self.environment.to_dict(),
            "seed": self.seed,
            "argv": list(self.argv),
            "options": dict(self.options),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StudyHeader:
        """Return the header from the data of `to_dict`.

        Raises:
            KeyError, TypeError: a field is missing or unknown.
        """
        workload = dict(data["workload"])
        requests = tuple(Request(**request) for request in workload.pop("requests"))
        return cls(
            **{
                **data,
                "workload": Workload(**workload, requests=requests),
                "environment": Environment.from_dict(data["environment"]),
                "argv": tuple(data["argv"]),
            }
        )

    def conflicts(self, other: StudyHeader) -> list[str]:
        """Return a text for each reason why trials with the other header are not comparable.

        Paths, names, dates, seed and command line can differ: they change no measurement.
        """
        found = self.environment.differences(other.environment)
        ours, theirs = _plain(self.to_dict()), _plain(other.to_dict())
        for name in ("dialect", "workload", "objective", "space", "options"):
            here, there = ours[name], theirs[name]
            if here == there:
                continue
            if isinstance(here, dict):
                keys = sorted(key for key in {*here, *there} if here.get(key) != there.get(key))
                found.append(f"{name}: other {', '.join(keys)}")
            else:
                found.append(f"{name}: {here}, now {there}")
        return found


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data with lists in place of tuples, as a file of JSON has them."""
    plain: dict[str, Any] = json.loads(json.dumps(data))
    return plain
