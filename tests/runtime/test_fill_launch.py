"""Launches that fill their context at the end, and what may befall them there."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from fakes.machine_fixtures import FakeMachine
from process_stage import MARK, Stage
from runtime.launch_sample import CARD, WORKLOAD, launcher, machine

from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import (
    FullContextCheck,
    make_full_context_request,
    plan_measurement,
)
from autofit.trial.candidate import Candidate, LaunchPlan, Limits

# With so much taken by others the candidate leaves 40 MiB.
TAKEN_MIB = 1172.0
# The other requests are shorter.
LONG_TOKENS = 3000


@pytest.fixture
def fill(tmp_path, monkeypatch):
    """Launches a candidate that has little left, with a fault; nothing of it may be left."""
    stage = Stage(tmp_path)
    monkeypatch.setenv(MARK, stage.mark)
    made_on = []

    def run(
        fault: str = "",
        *,
        context: int = 4096,
        taken_mib: float = TAKEN_MIB,
        limits: Limits = Limits(),  # noqa: B008
    ) -> LaunchResult:
        card = replace(CARD, other_mib=taken_mib)
        fake = FakeMachine(tmp_path, replace(machine(), devices=(card,)))
        made_on.append(fake)
        name, _, value = fault.partition(":")
        if fault:
            fake.fail(name, value or None, prompt_tokens=LONG_TOKENS)
        made = launcher(fake, limits=limits)
        candidate = Candidate(
            {"devices": "CUDA0", "n_gpu_layers": 99, "n_cpu_moe": 6, "context": context,
             "ubatch": 512}
        )  # fmt: skip
        plan = made.plan(candidate, as_served=False)
        assert isinstance(plan, LaunchPlan), plan
        request_plan = plan_measurement(WORKLOAD, 512, repeats=1)
        return made.launch(
            plan,
            replace(
                request_plan,
                full_context_check=FullContextCheck(
                    make_full_context_request(context), {"CUDA0": 3000.0}
                ),
            ),
            log_path=tmp_path / "server.log",
            on_stage=lambda _: None,
            check_stop=lambda: None,
        )

    yield run
    stage.wait_empty()
    assert all(fake.owners == [] for fake in made_on)


@pytest.mark.parametrize(
    ("fault", "kind", "stage", "detail"),
    [
        # Without a word, with a device almost full: it wanted memory.
        ("segfault:prompt", "out_of_memory", "prompt", "device"),
        ("oom-decode", "out_of_memory", "prompt", "device"),
        # Whoever kills it has another reason where the host has gigabytes left.
        ("killed:prompt", "crashed", "prompt", "killed"),
        ("abort:prompt", "crashed", "prompt", None),
        ("event-500", "crashed", "generate", None),
        ("no-slot", "crashed", "prompt", None),
        ("slot-shrunk:2048", "rejected", "prompt", "context_exceeded"),
        ("hang-generate:60", "crashed", "generate", "hang"),
    ],
)
def test_what_befalls_a_fill_is_told_as_anywhere_else(fill, fault, kind, stage, detail):
    """The outcome is that of the fill, and what was measured before it is kept."""
    result = fill(fault, limits=Limits(prompt_s=1.5, generate_s=1.5, stop_s=1.0))

    outcome = result.outcome
    assert (outcome.kind, outcome.stage) == (kind, stage), outcome
    if kind == "out_of_memory":
        assert outcome.where == detail
    elif kind in ("crashed", "rejected"):
        assert outcome.reason == detail
    assert [sample.is_warmup for sample in result.measurement.samples] == [True, False]


def test_ctrl_c_while_a_context_is_filled_leaves_nothing(fill):
    """The server hangs at that prompt: what stops the run ends it, and its memory is free."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            fill("hang-request:60")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_large_context_has_the_time_that_it_takes(fill):
    """What is many times as long as any usual prompt may take many times as long."""
    limits = Limits(prompt_s=1.0)

    result = fill("hang-request:1.5", context=98304, taken_mib=0.0, limits=limits)

    assert result.outcome.kind == "completed"
    assert result.measurement.samples[-1].prompt_tokens == 98304 - 64 - 8
