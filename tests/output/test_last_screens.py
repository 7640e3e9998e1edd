"""The last screens of probe, compare and sweep."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from study.study_sample import header

from autofit.output.sweep_report import print_sweep_result
from autofit.output.text.last_screen import print_comparison, print_probe_result
from autofit.study.study_folder import Study
from autofit.sweep.verdict import EntryVerdict, MetricVerdict

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
LONG = "a rather long text that says what happened " * 5
ROW = {
    "layout": "balanced",
    "cache_type": "q8_0",
    "ubatch": 2048,
    "fits": 21,
    "fails": 20,
    "outcome": "out_of_memory",
    "proven": True,
    "source": "launch",
    "launches": [1, 2],
    "free_mib": {"CUDA0": 153.0, "host": 9000.0},
}
PROBE = {"study": "results/p", "boundary": [ROW], "ended_by": "done", "notes": []}
SLOWER = MetricVerdict(
    metric="request_s", verdict="slower", message=LONG, ratio=0.83, low=0.8, high=0.86
)


def lines_of(show: Callable[[Console], None]) -> list[str]:
    """Return the lines that a screen has at 80 columns."""
    stream = io.StringIO()
    show(Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    return [line.rstrip() for line in lines]


def entry(name: str, verdict: str = "same", *metrics: MetricVerdict, **fields) -> EntryVerdict:
    """Return the verdict on an entry."""
    return EntryVerdict(name=name, verdict=verdict, date="", metrics=metrics, **fields)


@pytest.mark.parametrize(
    "changes",
    [{}, {"boundary": [ROW] * 30, "notes": [LONG] * 9}, {"boundary": [{**ROW, "free_mib": None}]}],
)
def test_a_probe_has_a_row_for_each_boundary(changes):
    """Both sides and the memory left are in a row; many rows are cut and counted."""
    result = {**PROBE, **changes}
    lines = lines_of(lambda console: print_probe_result(result, header(), console))

    (first, *_) = (line.split() for line in lines if line.startswith("balanced"))
    assert first[:7] == ["balanced", "q8_0", "2048", "21", "layers", "20", "layers"]
    assert any("22 more" in line for line in lines) == (len(result["boundary"]) == 30)
    assert any("autofit show results/p" in line for line in lines)


@pytest.mark.parametrize("name", ["h200-12gb-load-mode", "h200-12gb-same"])
def test_a_comparison_has_verdict_speeds_memory_and_sides(name):
    """Each figure has one line with the speed of B."""
    study = Study.open(REFERENCE / name)
    result = {**study.result, "notes": [LONG]}
    lines = lines_of(lambda console: print_comparison(result, study.header, console))

    assert lines[2].startswith(result["words"][0][:40])
    heads = [line.split()[0] for line in lines if line]
    for word in ("request", "prompt", "generation", "first", "load", "left", "A", "B", "more"):
        assert word in heads


def test_a_sweep_lists_the_worst_entries_first():
    """Many entries are cut and counted, and the files are named."""
    verdicts = [entry(f"entry-{number}") for number in range(30)]
    verdicts.append(entry("broken", "regression", SLOWER, replace(SLOWER, metric="pp_per_s")))
    verdicts.append(entry("absent", "skipped", notes=(LONG,), environment_changes=("a", "b")))
    lines = lines_of(
        lambda console: print_sweep_result(
            verdicts, console, sweep="night", links=[("summary", "results/sweeps/x/summary.md")]
        )
    )

    assert lines[1] == "sweep night: 1 regression, 30 same, 1 skipped"
    assert lines[3].split()[:5] == ["broken", "regression", "0.83x", "(0.80", "to"]
    assert any(line.startswith("22 more entries") for line in lines)
    assert lines[-1].split() == ["summary", "results/sweeps/x/summary.md"]


def test_a_sweep_gives_the_reason_of_a_skipped_entry():
    """Without a terminal the whole reason is printed."""
    stream = io.StringIO()
    verdicts = [entry("absent", "skipped", notes=("no such device",))]
    print_sweep_result(verdicts, Console(file=stream, width=500), sweep="night", links=[])

    assert "no such device" in stream.getvalue()
