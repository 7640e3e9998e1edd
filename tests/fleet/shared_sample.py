"""Workers of a shared tune without launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from study.study_sample import header

from autofit.fleet.shared_trials import Summary
from autofit.fleet.shared_tune import SharedTune
from autofit.fleet.storage import open_storage
from autofit.trial.purpose import TrialPurpose

POINT = {"layout": "single:CUDA0", "host_layers": 4}
EXPLORE = TrialPurpose("search", "explore", reason="first guess")


def worker(url: str, name: str, device: str = "CUDA0", **changes: Any) -> SharedTune:
    """A worker with two axes, whose trials have the seconds of their launch as a value."""
    fields: dict[str, Any] = {
        "storage": open_storage(url, report=lambda _: None),
        "name": "tune",
        "worker": name,
        "distributions": {
            "layout": CategoricalDistribution([f"single:{device}", "balanced"]),
            "host_layers": IntDistribution(0, 9999),
        },
        "summarize": lambda trial: Summary(
            trial.seconds if trial.is_completed else None,
            {"device_memory": 0.0 if trial.is_completed else 1.0},
            {"outcome": trial.outcome.kind},
        ),
        "report": lambda _: None,
    }
    return SharedTune(**{**fields, **changes})


@contextmanager
def joined(url: str, name: str, *, device: str = "CUDA0", **changes: Any) -> Iterator[SharedTune]:
    """A worker that takes part; `changes` are those of its study's header."""
    shared = worker(url, name, device)
    with shared.joined(header(**changes), [device]):
        yield shared
