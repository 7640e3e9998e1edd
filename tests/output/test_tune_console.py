"""A tune told as it goes on: plain lines for a log, a live view for a terminal."""

from __future__ import annotations

import io
import os
import re
import threading
from dataclasses import replace

import pytest
from rich.console import Console
from study.study_sample import WORKLOAD, trial
from trial.purpose_sample import purpose_of

from autofit.output.text.console import TuneConsole
from autofit.session.events import (
    BoundaryMoved,
    CandidateSkipped,
    Finished,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    Notice,
    PhaseStarted,
    StageStarted,
)
from autofit.trial.outcome import OutOfMemory, Skipped

OUT_OF_MEMORY = OutOfMemory("context", "cudaMalloc\x1b[2J", buffer="kv", device="CUDA0")
PURPOSE = purpose_of("boundary", reason="closing the boundary")
FAILED = trial(2, OUT_OF_MEMORY, phase="boundary")
EVENTS = [
    PhaseStarted("boundary", 12),
    LaunchStarted(1, PURPOSE, trial(1).candidate, "balanced"),
    StageStarted(1, "load"),
    LaunchEnded(trial(1, phase="boundary")),
    Incumbent(1, trial(1).candidate, "request_s", 5.3, 1.42),
    LaunchStarted(2, purpose_of("boundary"), FAILED.candidate, "balanced"),
    LaunchEnded(FAILED),
    BoundaryMoved("balanced", "q8_0", 20, 19, 512),
    BoundaryMoved("balanced", "f16", None, 19, 512),
    LaunchEnded(FAILED, is_reused=True),
    CandidateSkipped(trial(3).candidate, Skipped("dominated by #2")),
    Notice("memory did not come back\nwithin 30 s"),
    Finished({}),
]


_COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38)[;m]")


class _Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_log_has_one_line_for_each_launch():
    """Without a terminal each launch, phase, incumbent and notice is one plain line."""
    stream = io.StringIO()

    with TuneConsole(WORKLOAD, stream=stream, clock=_Clock()) as console:
        for event in EVENTS:
            console(event)

    assert (
        stream.getvalue()
        == """\
phase boundary (at most 12 launches)
#1 boundary balanced n_cpu_moe=20 ubatch=512: completed in 32 s: 5.5 s/request, 1,000 pp/s, \
40 tg/s, 1.69 s to first token; free CUDA0 900 MiB, host unknown; memory did not come back \
within 30 s
best so far: #1, 5.3 s/request, 42% faster than the baseline, unconfirmed
#2 boundary balanced n_cpu_moe=20 ubatch=512: out of memory at context (kv, CUDA0) in 32 s: \
cudaMalloc\\u001b[2J
host expert layers, balanced q8_0 ubatch=512: 20 fit, 19 fail
host expert layers, balanced f16 ubatch=512: nothing known to fit, 19 fail
#2 boundary balanced n_cpu_moe=20 ubatch=512: out of memory at context (kv, CUDA0) in 32 s: \
cudaMalloc\\u001b[2J (known from before)
notice: memory did not come back within 30 s
"""
    )


def test_a_launch_that_was_not_timed_tells_that_it_fits():
    """A probe asks for room alone: its launches have held the longest prompt."""
    probed = replace(trial(4, phase="boundary"), measurement=None)
    stream = io.StringIO()

    TuneConsole(WORKLOAD, stream=stream)(LaunchEnded(probed))

    assert "completed in 32 s: fits" in stream.getvalue()


def test_a_proof_and_a_slower_candidate_are_told_as_such():
    """A proof measures no speed, and what the baseline beats is the best of the candidates."""
    proof = replace(trial(4, phase="prove"), measurement=None)
    stream = io.StringIO()
    console = TuneConsole(WORKLOAD, stream=stream, clock=_Clock())

    console(LaunchEnded(proof))
    console(Incumbent(3, proof.candidate, "request_s", 9.46, 0.6))

    proven, best = stream.getvalue().splitlines()
    assert "completed in 32 s: holds at full context" in proven
    assert best.startswith("best candidate so far: #3, 9.46 s/request, ")
    assert "slower than the baseline" in best


@pytest.mark.parametrize("width", [40, 80])
def test_view_shows_phase_launch_stage_and_time_left(width):
    """The live view has one short line each, whatever the width."""
    clock = _Clock()
    console = TuneConsole(WORKLOAD, budget_s=600.0, stream=io.StringIO(), clock=clock)
    console._console = Console(file=io.StringIO(), width=width)
    for event in EVENTS[:2]:
        console(event)
    clock.now += 20
    console(StageStarted(1, "load"))
    console(EVENTS[4])
    clock.now += 12.5

    shown = Console(file=io.StringIO(), width=width)
    shown.print(console.view())
    lines = shown.file.getvalue().splitlines()

    assert lines[0].startswith("2/5 boundary · 1 of at most 12 launches"[:39])
    assert lines[1].startswith("launch 1 balanced: closing the")
    assert lines[2].strip() == "n_cpu_moe=20 ubatch=512"
    assert lines[3].strip() == "load 12 s"
    assert lines[4].startswith("best so far: #1, 5.3 s/request")
    assert max(map(len, lines)) <= width
    if width == 80:
        assert lines[0].endswith("9 min 28 s left")


def test_view_before_anything_happened():
    """The view is there from the start."""
    console = TuneConsole(WORKLOAD, stream=io.StringIO(), clock=_Clock())
    shown = Console(file=io.StringIO(), width=80)
    shown.print(console.view())

    assert shown.file.getvalue().strip() == "looking · 0.0 s so far"


def on_terminal() -> str:
    """What a real terminal is sent while a tune goes on."""
    ours, theirs = os.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, shown))
    reader.start()
    with (
        os.fdopen(theirs, "w", encoding="utf-8") as stream,
        TuneConsole(WORKLOAD, budget_s=60.0, stream=stream) as console,
    ):
        for event in EVENTS:
            console(event)
    reader.join(timeout=10)
    os.close(ours)
    return b"".join(shown).decode()


def test_terminal_keeps_the_lines_of_launches(monkeypatch):
    """On a real terminal the view is drawn and removed, and the launches' lines stay."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = on_terminal()

    assert "out of memory at context" in text
    assert "looking" in text
    assert "\x1b[2J" not in text
    assert _COLOUR.search(text)


def test_terminal_without_colour_gets_none(monkeypatch):
    """NO_COLOR keeps the view and drops its colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = on_terminal()

    assert "host expert layers" in text
    assert not _COLOUR.search(text)


def _read_all(descriptor: int, into: list[bytes]) -> None:
    """Read a terminal until nothing holds its other end."""
    try:
        while data := os.read(descriptor, 4096):
            into.append(data)
    except OSError:
        pass
