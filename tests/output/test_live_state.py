"""The state of the live view: strips of host layers, bars of memory, stages of a launch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study.study_sample import trial
from trial.purpose_sample import purpose_of

from autofit.output.live.live_state import LiveState, MemoryBars, Strip
from autofit.session.events import (
    LaunchEnded,
    LaunchStarted,
    StageStarted,
)
from autofit.trial.measurement import MemoryReading
from autofit.trial.outcome import OutOfMemory

OOM = OutOfMemory("context", "cudaMalloc failed", device="CUDA0")


def memory_reading(
    used: float | None, free: float | None, process: float | None = None
) -> MemoryReading:
    """Return the memory of one card and of the host."""
    return MemoryReading(0.0, {"CUDA0": used}, {"CUDA0": free}, process, 20_000.0)


def test_strip_narrows_to_the_boundary():
    """A failed launch rules out fewer layers; one that ran implies that more layers fit."""
    strip = Strip("balanced, q8_0").marked(20, "o").marked(14, "x")
    assert strip.draw(24, 80).plain == "0 --------------x.....o==== 24"

    strip = strip.marked(17, "*").bounded(17, 16)
    assert strip.draw(24, 80).plain == "0 --------------x--*==o==== 24"


def test_strip_shows_the_better_outcome_of_a_number_of_layers():
    """If one ubatch ran and another did not, the strip shows that it ran."""
    strip = Strip("").marked(18, "o").marked(18, "x").marked(19, "!")

    assert (strip.character(18), strip.character(19)) == ("o", "!")
    assert strip.marked(18, "*").without_best().character(18) == "o"


@given(
    marks=st.dictionaries(st.integers(0, 200), st.sampled_from("x!o*"), max_size=20),
    last=st.integers(0, 200),
    columns=st.integers(20, 200),
)
def test_strip_is_never_wider_than_its_room(marks, last, columns):
    """The strip has its columns at most, and whole numbers at its ends."""
    strip = Strip("", marks)
    text = strip.draw(last, columns).plain
    first, middle, end = text.split(" ")

    assert len(text) <= max(columns, 8 + 2 * 3 + 2)
    assert len(middle) == int(end) - int(first) + 1


def test_bar_shows_the_memory_of_the_server():
    """Memory used before the launch is not counted; a limit of the user's is the maximum."""
    bars = MemoryBars({"CUDA0": 8000.0}).read(memory_reading(1000.0, 11_000.0))
    bars = bars.read(memory_reading(7000.0, 5000.0, 2000.0))
    card, host = (line.plain for line in bars.draw(60))

    assert card.endswith("] 6,000 MiB of 8,000 MiB")
    assert card.count("#") / (card.count("#") + card.count("-")) == pytest.approx(0.75, abs=0.03)
    assert host.startswith("host  [##")
    assert host.endswith("] 2,000 MiB of 19.5 GiB")
    assert list(bars.restarted().draw(60)) == []


def test_device_without_a_counter_has_no_bar():
    """Unknown memory is not drawn as 0."""
    bars = MemoryBars().read(memory_reading(None, None)).read(memory_reading(None, None))

    assert list(bars.draw(60)) == []


def test_full_host_memory_implies_nothing_for_fewer_host_layers():
    """Only on a full device do more layers not fit either."""
    strips = []
    for where in ("device", "host"):
        failed = trial(1, OutOfMemory("load", "no room", where=where), n_cpu_moe=12)
        (strip,) = LiveState(layers=48).after(LaunchEnded(failed), 0.0).strips.values()
        strips.append("".join(strip.character(layers) for layers in range(14)))

    assert strips == ["-" * 12 + "x.", "." * 12 + "!."]


def test_stages_of_a_launch_add_up():
    """The seconds of a stage that repeats with each request are added."""
    state = LiveState().after(LaunchStarted(1, purpose_of("search"), trial(1).candidate), 0.0)
    for stage, now in (("load", 0.0), ("prompt", 4.0), ("generate", 5.0), ("prompt", 8.0)):
        state = state.after(StageStarted(1, stage), now)

    assert state.stages == {"load": 4.0, "prompt": 1.0, "generate": 3.0}
