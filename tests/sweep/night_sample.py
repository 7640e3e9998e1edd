"""Records of nights with known noise, and baselines of some of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice
from autofit.sweep.baseline_entry import BaselineEntry
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_record import (
    BoundaryRow,
    EntryFailure,
    EntryRecord,
    EnvironmentSnapshot,
    LaunchValues,
    MeasuredSettings,
)
from autofit.sweep.verdict import EntryVerdict, MetricVerdict

WINNER = MeasuredSettings(
    {"n_cpu_moe": 17, "ubatch": 1024},
    ("llama-server", "-m", "model.gguf", "--n-cpu-moe", "17"),
    "c0ffee",
)
BOUNDARY = BoundaryRow("balanced", "f16", 17, 16, "out_of_memory", proven=True)
FIRST = datetime(2026, 11, 1, 2, tzinfo=UTC)
REPRODUCE = "autofit sweep nightly.yaml --only qwen"


def launch_values(slowdown: float) -> LaunchValues:
    """Return the values of a launch that takes this many times as long as usual."""
    return LaunchValues(800 / slowdown, 40 / slowdown, 0.6 * slowdown, 3.1 * slowdown)


def launches(
    count: int = 8, *, slowdown: float = 1.0, noise: float = 0.01, seed: int = 0
) -> tuple[LaunchValues, ...]:
    """Return launches with noise that multiplies all their times."""
    rng = random.Random(seed)
    return tuple(launch_values(slowdown * math.exp(rng.gauss(0, noise))) for _ in range(count))


def answer(tokens: Iterable[int] = range(100, 124), text: str = "so it goes") -> RecordedAnswer:
    """Return a greedy answer with a high probability of each token."""
    chosen = tuple(tokens)
    choices = tuple(TokenChoice(t, -0.05, {t: -0.05, 7: -3.5, 9: -6.0}) for t in chosen)
    return RecordedAnswer(text, chosen, choices)


def night(seed: int = 1, **changes: object) -> EntryRecord:
    """Return a good night with some changes."""
    record = EntryRecord(
        name="qwen",
        mode="remeasure",
        date=(FIRST + timedelta(days=seed)).isoformat(),
        autofit_version="0.1.0",
        winner=WINNER,
        launches=launches(seed=seed),
        peak_mib={"CUDA0": 11_000.0, "host": 2_000.0},
        free_mib={"CUDA0": 1_000.0, "host": 30_000.0},
        boundary=(BOUNDARY,),
        answers=(answer(), answer(range(300, 324), "and so on")),
        environment=EnvironmentSnapshot(
            driver="580.1",
            build="b11434",
            model_digest="beef",
            cpu="a CPU",
            devices=("CUDA0: a card, 12288 MiB",),
            clocks_mhz={"CUDA0": 1900.0, "cpu": 3000.0},
            others_cores=0.1,
        ),
        seconds=312.5,
        reproduce=REPRODUCE,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def failed(kind: str = "crashed", status: str = "failed", **changes: object) -> EntryRecord:
    """Return a night without measurements."""
    failure = EntryFailure(kind, f"the log says {kind}", "load", None)
    return night(
        9,
        **{
            "status": status,
            "failure": failure,
            "launches": (),
            "peak_mib": {},
            "boundary": (),
            "answers": (),
            **changes,
        },
    )


def kept(nights: int = 3, **changes: object) -> BaselineEntry:
    """Return the baseline after some good nights."""
    baseline = Baseline()
    for seed in range(1, nights + 1):
        baseline = baseline.updated([night(seed, **changes)])
    return baseline.entries["qwen"]


def by_metric(verdict: EntryVerdict) -> dict[str, MetricVerdict]:
    """Return the verdicts on an entry's metrics by name."""
    return {one.metric: one for one in verdict.metrics}
