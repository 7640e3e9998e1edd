"""The display of a run: plain lines for a log, a live view on a terminal."""

from __future__ import annotations

import io
import os
import re
import threading
from dataclasses import replace

import pytest
from output.test_live_state import memory_reading
from rich.console import Console
from study.study_sample import WORKLOAD, measurement, trial
from trial.purpose_sample import purpose_of

from autofit.output.live.run_console import RunConsole
from autofit.output.text.event_line import event_line
from autofit.session.events import (
    BoundaryMoved,
    CandidateSkipped,
    Event,
    Finished,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    MemoryRead,
    Notice,
    PhaseStarted,
    RoundEnded,
    StageStarted,
)
from autofit.statistics.estimate import Estimate
from autofit.trial.measurement import Measurement, MemoryReading
from autofit.trial.outcome import Crashed, OutOfMemory, Skipped

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


def test_verbose_log_has_all_of_each_event():
    """A verbose console prints each phase, launch, boundary and notice with all that is known."""
    stream = io.StringIO()

    with RunConsole(WORKLOAD, stream=stream, clock=_Clock(), verbose=True) as console:
        for event in EVENTS:
            console(event)

    assert (
        stream.getvalue()
        == """\
phase boundary (at most 12 launches)
#1 boundary balanced n_cpu_moe=20 ubatch=512: completed in 32 s: 5.5 s/request, 1,000 pp/s, \
40 tg/s, 1.69 s to first token; free CUDA0 900 MiB, host unknown; memory did not come back \
within 30 s
best so far: #1, 5.3 s/request, 1.42x as fast as the baseline, unconfirmed
#2 boundary balanced n_cpu_moe=20 ubatch=512: out of memory at context (kv, CUDA0) in 32 s: \
cudaMalloc\\u001b[2J
layers with experts in RAM, balanced q8_0 ubatch=512: 20 fits, 19 does not
layers with experts in RAM, balanced f16 ubatch=512: 19 does not fit; \
nothing that fits found yet
#2 boundary balanced n_cpu_moe=20 ubatch=512: out of memory at context (kv, CUDA0) in 32 s: \
cudaMalloc\\u001b[2J (from an earlier run)
notice: memory did not come back within 30 s
"""
    )


def log(*events: Event, **options) -> list[str]:
    """Return the lines that a console prints without a terminal."""
    stream = io.StringIO()
    console = RunConsole(WORKLOAD, stream=stream, clock=_Clock(), **options)
    for event in events:
        console(event)
    return stream.getvalue().splitlines()


def test_log_has_one_short_line_for_each_launch():
    """A line has number, settings and result; boundaries and skipped candidates have none."""
    phase, ran, best, failed, again, notice = log(*EVENTS)

    assert phase.startswith("phase boundary (at most 12 launches)")
    assert ran == (
        "#1 boundary, n_cpu_moe=20 balanced ubatch=512: 5.5 s/request, 1,000 pp/s, 40 tg/s"
    )
    assert best.startswith("best so far: #1, 5.3 s/request, 1.42x as fast")
    assert failed.startswith("#2 boundary, settings of #1: out of memory at context")
    assert again == failed
    assert notice == "notice: memory did not come back within 30 s"


def test_a_line_shows_what_differs_from_the_best_so_far():
    """The first launch with settings shows all; a known candidate is named by its number."""
    known, best, worse, other = (
        trial(number, ubatch=ubatch, cache_type_k=kind, cache_type_v=kind)
        for number, ubatch, kind in (
            (1, 512, "f16"),
            (2, 256, "f16"),
            (3, 256, "q8_0"),
            (4, 64, "f16"),
        )
    )
    moved = replace(other, layout="capacity")
    again = replace(best, number=5, purpose=purpose_of("confirm", round=1))
    incumbent = Incumbent(2, best.candidate, "request_s", 5.3, 1.42)
    lines = log(
        *map(LaunchEnded, (known, best)), incumbent, *map(LaunchEnded, (worse, moved, again))
    )

    settings = [line.split(": ")[0].partition(", ")[2] for line in lines if line[0] == "#"]
    assert settings == [
        "n_cpu_moe=20 balanced ubatch=512 cache_type=f16",
        "ubatch=256",
        "cache_type=q8_0",
        "capacity ubatch=64",
        "settings of #2",
    ]


def test_no_line_of_a_launch_is_longer_than_100_columns():
    """Long settings are cut, and the result stays; on a terminal its width is the limit."""
    long = {f"parameter_{number}": "value" * 3 for number in range(20)}
    failed = OutOfMemory("context", "cudaMalloc failed: " * 9, buffer="kv", device="CUDA0")
    lines = log(LaunchEnded(trial(1, **long)), LaunchEnded(trial(2, failed, threads=3, **long)))

    assert [len(line) <= 100 for line in lines] == [True, True]
    assert lines[0].endswith("...: 5.5 s/request")
    assert "threads=3: out of memory at context (kv, CUDA0)" in lines[1]


def test_a_line_has_the_objective_first():
    """The time to the first token is shown if it is the objective."""
    (line,) = log(LaunchEnded(trial(1)), metric="ttft")

    assert ": 1.69 s to first token, 5.5 s/request, " in line


def test_launch_of_a_probe_is_logged_as_fitting():
    """It shows the count of host layers and headroom."""
    probed = [
        replace(one, purpose=purpose_of("boundary", role="fit_check"), measurement=measured)
        for one, measured in (
            (trial(4), None),
            (trial(5, n_cpu_moe=19), measurement_without_speed()),
        )
    ]
    lines = log(*map(LaunchEnded, probed))

    assert lines[0] == "#4 boundary, n_cpu_moe=20 balanced ubatch=512: fits"
    assert lines[1] == "#5 boundary, n_cpu_moe=19: fits, 900 MiB free on CUDA0"


def measurement_without_speed() -> Measurement:
    """Return what a test of fit alone measures."""
    return replace(measurement(), samples=())


def test_proof_and_slower_candidate_have_lines_of_their_own():
    """A proof runs at full context; the best candidate may be slower than the baseline."""
    proof = replace(trial(4, phase="prove"), measurement=None)

    proven, best = log(LaunchEnded(proof), Incumbent(3, proof.candidate, "request_s", 9.46, 0.6))
    assert proven.endswith(": runs at full context")
    assert best.startswith("best candidate so far: #3, 9.46 s/request, ")
    assert "0.60x as fast as the baseline" in best


@pytest.mark.parametrize("width", [40, 80])
def test_view_shows_phase_launch_stage_and_time_left(width):
    """Each of them has one line that is not wider than the terminal."""
    clock = _Clock()
    console = RunConsole(WORKLOAD, budget_s=600.0, stream=io.StringIO(), clock=clock)
    console._console = Console(file=io.StringIO(), width=width)
    console(PhaseStarted("baseline"))
    for event in EVENTS[:2]:
        console(event)
    clock.now += 20
    console(StageStarted(1, "load"))
    console(EVENTS[4])
    clock.now += 12.5

    shown = Console(file=io.StringIO(), width=width)
    shown.print(console.view())
    lines = shown.file.getvalue().splitlines()

    assert lines[0].startswith("2/5 boundary · 1 of 12 launches"[:39])
    assert lines[1].startswith("launch 1 balanced: closing the")
    assert lines[2].strip() == "n_cpu_moe=20 balanced ubatch=512"
    assert lines[3].strip() == "load 12 s"
    assert lines[4].startswith("best so far: #1, 5.3 s/request")
    assert max(map(len, lines)) <= width
    if width == 80:
        assert lines[0].endswith("budget left 9 min (usually ends sooner)")


def test_view_is_there_before_the_first_event():
    """Without any event the view shows the time."""
    console = RunConsole(WORKLOAD, stream=io.StringIO(), clock=_Clock())
    shown = Console(file=io.StringIO(), width=80)
    shown.print(console.view())

    assert shown.file.getvalue().strip() == "preparing · 0.0 s so far"


def test_views_leave_nothing_between_the_lines_of_launches(monkeypatch):
    """Lines that are printed while the view is drawn do not keep parts of it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    many = [LaunchEnded(trial(number, n_cpu_moe=number)) for number in range(1, 150)]
    text = on_terminal([EVENTS[0], EVENTS[1], EVENTS[2], *many], refresh_s=0.0005)

    lines = [line for line in screen_of(text) if line]
    assert [line.split()[0] for line in lines[1:]] == [f"#{number}" for number in range(1, 150)]


def screen_of(text: str) -> list[str]:
    """Return the lines that a terminal has after a text with the controls that Rich uses."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b"):
            lines[row] += part
    return lines


def on_terminal(events: list[Event] = EVENTS, **options) -> str:
    """Return what a real terminal receives during a run."""
    ours, theirs = os.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, shown))
    reader.start()
    with (
        os.fdopen(theirs, "w", encoding="utf-8") as stream,
        RunConsole(WORKLOAD, budget_s=60.0, stream=stream, **options) as console,
    ):
        for event in events:
            console(event)
    reader.join(timeout=10)
    os.close(ours)
    return b"".join(shown).decode()


def test_terminal_keeps_the_lines_of_launches(monkeypatch):
    """The view is drawn and removed, and the lines of launches stay."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = on_terminal()

    assert "out of memory at context" in text
    assert "preparing" in text
    assert "\x1b[2J" not in text
    assert _COLOUR.search(text)


def test_terminal_without_colour_gets_none(monkeypatch):
    """With NO_COLOR the view has no colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = on_terminal()

    assert "experts in RAM" in text
    assert not _COLOUR.search(text)


def _read_all(descriptor: int, into: list[bytes]) -> None:
    """Read a terminal until its other end is closed."""
    try:
        while data := os.read(descriptor, 4096):
            into.append(data)
    except OSError:
        pass


def tune() -> list[Event]:
    """Return the events of a tune up to its rounds."""
    applied = {"layers": 48}
    ran = Measurement(samples=measurement().samples, applied=applied)
    best = trial(3, n_cpu_moe=17, measured=ran)
    return [
        PhaseStarted("baseline"),
        PhaseStarted("search", 30),
        LaunchEnded(trial(1, OUT_OF_MEMORY, n_cpu_moe=12)),
        LaunchEnded(trial(2, Crashed("load", "died"), n_cpu_moe=30)),
        LaunchEnded(best),
        Incumbent(3, best.candidate, "request_s", 5.3, 1.42),
        BoundaryMoved("balanced", "f16", 17, 12, 512),
        PhaseStarted("confirm"),
        RoundEnded(3, 12, best.candidate.key, Estimate(1.42, 1.3, 1.5, 3)),
        LaunchStarted(4, purpose_of("confirm", round=4), best.candidate, "balanced"),
        StageStarted(4, "load"),
        MemoryRead(memory_reading(1000.0, 11_000.0)),
        MemoryRead(memory_reading(11_500.0, 500.0, 900.0)),
        StageStarted(4, "prompt"),
    ]


def shown(width: int, **options) -> list[str]:
    """Return the lines of the view at a width, with two seconds between events."""
    clock = _Clock()
    stream = io.StringIO()
    console = RunConsole(
        WORKLOAD, stream=stream, clock=clock, limits_mib={"CUDA0": 11_000.0}, **options
    )
    for event in tune():
        console(event)
        clock.now += 2.0
    console._console = Console(file=io.StringIO(), width=width)
    out = Console(file=io.StringIO(), width=width, no_color=True)
    out.print(console.view())
    return out.file.getvalue().splitlines()


def test_view_at_80_columns_without_colour():
    """It has phase, time left, launch, stages, memory, strip, and speedup with interval."""
    assert [line.rstrip() for line in shown(80, budget_s=60.0)] == [
        "4/5 confirm · 1 launch · budget left 32 s (usually ends sooner)",
        "launch 4 balanced: round 4",
        "  settings of #3",
        "  prompt 2.0 s (before: load 6.0 s)",
        "CUDA0 [###########################################--] 10.3 GiB of 10.7 GiB",
        "host  [##-------------------------------------------] 900 MiB of 19.5 GiB",
        "layers with experts in RAM  x no fit  ! error  o ran  * best  -= implied  . open",
        "  balanced, f16 0 ------------x....*============!================== 48",
        "Round 3 of 12: #3 is 1.42x as fast as the baseline (95% interval 1.30 to 1.50)",
    ]


@pytest.mark.parametrize("width", [20, 40, 79])
def test_view_is_never_wider_than_the_terminal(width):
    """Long lines are cut and not wrapped."""
    lines = shown(width)

    assert len(lines) == 9
    assert max(map(len, lines)) <= width


def test_view_of_many_devices_has_fewer_than_20_lines():
    """Bars of some devices stand for all of them."""
    console = RunConsole(WORKLOAD, stream=io.StringIO(), clock=_Clock())
    names = [f"RPC{number}" for number in range(20)]
    for event in (*tune()[:-3], *(MemoryRead(reading_of(names, used)) for used in (1.0, 900.0))):
        console(event)
    console._console = Console(file=io.StringIO(), width=80)
    out = Console(file=io.StringIO(), width=80)
    out.print(console.view())
    lines = out.file.getvalue().splitlines()

    assert len(lines) < 20
    assert sum(line.startswith("RPC") for line in lines) == 8


def reading_of(names: list[str], used_mib: float) -> MemoryReading:
    """Return a reading of several devices."""
    free = dict.fromkeys(names, 4000.0)
    return MemoryReading(0.5, dict.fromkeys(names, used_mib), free)


def test_view_shows_the_time_over_budget():
    """After the budget is used up, the time over it counts up."""
    assert shown(80, budget_s=20.0)[0].endswith("8.0 s over budget")


def test_phase_that_exceeds_the_budget_is_logged_once():
    """The notice has the time over budget and the reason."""
    clock, stream = _Clock(), io.StringIO()
    console = RunConsole(WORKLOAD, budget_s=60.0, stream=stream, clock=clock)
    launch = LaunchStarted(1, purpose_of("prove"), trial(1).candidate)
    console(launch)
    clock.now += 75.0
    console(launch)
    console(launch)

    (line,) = stream.getvalue().splitlines()
    assert line.startswith("notice: budget of 1 min 00 s used up (15 s over); prove continues")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (RoundEnded(1, 12, None), "Round 1 of 12: no contender is left"),
        (RoundEnded(1, 12, "A"), "Round 1 of 12: A ahead"),
        (RoundEnded(1, 12, "key", None, "key"), "Round 1 of 12: own settings ahead"),
        (
            RoundEnded(4, 9, "B", Estimate(1.25, 1.2, 1.3, 4), "A"),
            "Round 4 of 9: B is 1.25x as fast as A (95% interval 1.20 to 1.30)",
        ),
        (
            RoundEnded(3, 9, "B", Estimate(2.5, 1e-17, 1e18, 3), "A"),
            "Round 3 of 9: B ahead, but far from decided",
        ),
        (
            RoundEnded(2, 3, "key", Estimate(0.9, None, None, 2)),
            "Round 2 of 3: #7 is 0.90x as fast as the baseline (no interval yet)",
        ),
    ],
)
def test_line_of_a_round_has_the_leader_and_its_speed(event, expected):
    """The speed has its interval as soon as there is one."""
    assert event_line(event, WORKLOAD, {"key": 7}) == expected
