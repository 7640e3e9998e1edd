"""The live view of a tune: strips that close in, bars of memory, rounds, and their width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from study.study_sample import WORKLOAD, measurement, trial
from trial.purpose_sample import purpose_of

from autofit.output.live.live_state import LiveState
from autofit.output.live.memory_bar import MemoryBars
from autofit.output.live.strip import Strip
from autofit.output.text.console import TuneConsole
from autofit.output.text.event_line import event_line, overrun_line
from autofit.session.events import (
    BoundaryMoved,
    Event,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    MemoryRead,
    PhaseStarted,
    RoundEnded,
    StageStarted,
)
from autofit.statistics.estimate import Estimate
from autofit.trial.measurement import Measurement, MemoryReading
from autofit.trial.outcome import Crashed, OutOfMemory

OOM = OutOfMemory("context", "cudaMalloc failed", device="CUDA0")


class _Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reading(used: float | None, free: float | None, process: float | None = None) -> MemoryReading:
    """Memory of one card and the host at some moment."""
    return MemoryReading(0.0, {"CUDA0": used}, {"CUDA0": free}, process, 20_000.0)


def test_the_strip_closes_in_on_the_boundary():
    """Launches rule out what lies beyond them, until nothing between is open."""
    strip = Strip("balanced, q8_0").marked(20, "o").marked(14, "x")
    assert strip.draw(24, 80).plain == "0 --------------x.....o==== 24"

    strip = strip.marked(17, "*").closed_in(17, 16)
    assert strip.draw(24, 80).plain == "0 --------------x--*==o==== 24"


def test_the_better_outcome_of_a_number_of_layers_is_shown():
    """Where one ubatch ran and another did not, the layers can be had."""
    strip = Strip("").marked(18, "o").marked(18, "x").marked(19, "!")

    assert (strip.character(18), strip.character(19)) == ("o", "!")
    assert strip.marked(18, "*").without_best().character(18) == "o"


@given(
    marks=st.dictionaries(st.integers(0, 200), st.sampled_from("x!o*"), max_size=20),
    last=st.integers(0, 200),
    columns=st.integers(20, 200),
)
def test_a_strip_is_never_wider_than_its_room(marks, last, columns):
    """Whatever was tried, the strip fits its columns and shows whole numbers at its ends."""
    strip = Strip("", marks)
    text = strip.draw(last, columns).plain
    first, middle, end = text.split(" ")

    assert len(text) <= max(columns, 8 + 2 * 3 + 2)
    assert len(middle) == int(end) - int(first) + 1


def test_bars_show_what_the_server_took_of_what_it_may():
    """What was used before the launch is others'; the limit is the user's where there is one."""
    bars = MemoryBars({"CUDA0": 8000.0}).read(reading(1000.0, 11_000.0))
    bars = bars.read(reading(7000.0, 5000.0, 2000.0))
    card, host = (line.plain for line in bars.draw(60))

    assert card.endswith("] 6,000 MiB of 8,000 MiB")
    assert card.count("#") / (card.count("#") + card.count("-")) == pytest.approx(0.75, abs=0.03)
    assert host.startswith("host  [##")
    assert host.endswith("] 2,000 MiB of 19.5 GiB")
    assert list(bars.begun().draw(60)) == []


def test_devices_without_a_counter_have_no_bar():
    """What is not known is not drawn as 0."""
    bars = MemoryBars().read(reading(None, None)).read(reading(None, None))

    assert list(bars.draw(60)) == []


def tune() -> list[Event]:
    """The events of a tune that has come to its confirmation."""
    applied = {"layers": 48}
    ran = Measurement(samples=measurement().samples, applied=applied)
    best = trial(3, n_cpu_moe=17, measured=ran)
    return [
        PhaseStarted("search", 30),
        LaunchEnded(trial(1, OOM, n_cpu_moe=12)),
        LaunchEnded(trial(2, Crashed("load", "died"), n_cpu_moe=30)),
        LaunchEnded(best),
        Incumbent(3, best.candidate, "request_s", 5.3, 1.42),
        BoundaryMoved("balanced", "f16", 17, 12, 512),
        PhaseStarted("confirm"),
        RoundEnded(3, 12, best.candidate.key, Estimate(1.42, 1.3, 1.5, 3)),
        LaunchStarted(4, purpose_of("confirm", round=4), best.candidate, "balanced"),
        StageStarted(4, "load"),
        MemoryRead(reading(1000.0, 11_000.0)),
        MemoryRead(reading(11_500.0, 500.0, 900.0)),
        StageStarted(4, "prompt"),
    ]


def shown(width: int, **options) -> list[str]:
    """The lines of the view at a width, two seconds after each event."""
    clock = _Clock()
    stream = io.StringIO()
    console = TuneConsole(
        WORKLOAD, stream=stream, clock=clock, limits_mib={"CUDA0": 11_000.0}, **options
    )
    for event in tune():
        console(event)
        clock.now += 2.0
    console._console = Console(file=io.StringIO(), width=width)
    out = Console(file=io.StringIO(), width=width, no_color=True)
    out.print(console.view())
    return out.file.getvalue().splitlines()


def test_the_view_at_80_columns_without_colour():
    """Phase, launch, stages with seconds, memory, strip, gain with interval, and time left."""
    assert [line.rstrip() for line in shown(80, budget_s=60.0)] == [
        "4/5 confirm · 1 launch · 34 s left",
        "launch 4 balanced: round 4",
        "  n_cpu_moe=17 ubatch=512",
        "  prompt 2.0 s (before: load 6.0 s)",
        "CUDA0 [###########################################--] 10.3 GiB of 10.7 GiB",
        "host  [##-------------------------------------------] 900 MiB of 19.5 GiB",
        "host expert layers   x no fit  ! failed  o ran  * best  -/= implied  . open",
        "  balanced, f16 0 ------------x....*============!================== 48",
        "round 3 of at most 12: #3 is 42% faster than the baseline, interval 1.3 to 1.5",
    ]


def test_want_of_host_memory_implies_nothing_for_fewer_host_layers():
    """Only a device that is full is as full with more layers on it."""
    strips = []
    for where in ("device", "host"):
        failed = trial(1, OutOfMemory("load", "no room", where=where), n_cpu_moe=12)
        (strip,) = LiveState(layers=48).after(LaunchEnded(failed), 0.0).strips.values()
        strips.append("".join(strip.character(layers) for layers in range(14)))

    assert strips == ["-" * 12 + "x.", "." * 12 + "!."]


@pytest.mark.parametrize("width", [20, 40, 79])
def test_the_view_is_never_wider_than_the_terminal(width):
    """Lines are cut, not wrapped, however narrow the terminal."""
    lines = shown(width)

    assert len(lines) == 9
    assert max(map(len, lines)) <= width


def test_time_over_the_budget_is_told_in_the_view():
    """A budget that is spent counts up."""
    assert shown(80, budget_s=20.0)[0].endswith("6.0 s over budget")


def test_a_phase_that_goes_on_past_the_budget_is_announced_once():
    """The log says that the budget is spent, and why the phase goes on."""
    clock, stream = _Clock(), io.StringIO()
    console = TuneConsole(WORKLOAD, budget_s=60.0, stream=stream, clock=clock)
    launch = LaunchStarted(1, purpose_of("prove"), trial(1).candidate)
    console(launch)
    clock.now += 75.0
    console(launch)
    console(launch)

    assert stream.getvalue() == (
        "notice: the budget of 1 min 00 s is spent (15 s over); prove goes on: without a proof "
        "there is no result\n"
    )
    # It may stop before the next launch: nothing more is promised.
    assert "confirm takes a little more while there are too few rounds" in overrun_line(
        "confirm", 60.0, 61.0
    )


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (RoundEnded(1, 12, None), "round 1 of at most 12: nothing is left to compare"),
        (RoundEnded(1, 12, "A"), "round 1 of at most 12: A leads"),
        (
            RoundEnded(4, 9, "B", Estimate(1.25, 1.2, 1.3, 4), "A"),
            "round 4 of at most 9: B is 25% faster than A, interval 1.2 to 1.3",
        ),
        (
            RoundEnded(3, 9, "B", Estimate(2.5, 1e-17, 1e18, 3), "A"),
            "round 3 of at most 9: B is 2.5 times as fast as A, "  # noqa: ISC004
            "its interval is still too wide to tell anything",
        ),
        (
            RoundEnded(2, 3, "key", Estimate(0.9, None, None, 2)),
            "round 2 of at most 3: #7 is 10% slower than the baseline, no interval yet",
        ),
    ],
)
def test_rounds_are_told_as_lines(event, expected):
    """A round says who leads, by how much, and how sure that is."""
    assert event_line(event, WORKLOAD, {"key": 7}) == expected


def test_stages_of_a_launch_add_up():
    """A stage that comes again, request by request, is counted in all."""
    state = LiveState().after(LaunchStarted(1, purpose_of("search"), trial(1).candidate), 0.0)
    for stage, now in (("load", 0.0), ("prompt", 4.0), ("generate", 5.0), ("prompt", 8.0)):
        state = state.after(StageStarted(1, stage), now)

    assert state.stages == {"load": 4.0, "prompt": 1.0, "generate": 3.0}
