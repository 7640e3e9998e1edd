"""Launches from start to stop, with real processes on a simulated machine."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from fakes.machine_fixtures import FakeMachine
from process_stage import MARK, Stage
from runtime.launch_sample import CARD, WORKLOAD, launch, launcher, machine

from autofit.errors import Interrupted, UsageError
from autofit.machine.memory_counter import MemoryCounter, MemorySource, NoMemorySource
from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import (
    FullContextCheck,
    make_full_context_request,
    plan_measurement,
    plan_without_measurement,
)
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.outcome import Rejected
from autofit.trial.workload import Request, Workload

PARAMS = {"devices": "CUDA0", "n_gpu_layers": 99, "n_cpu_moe": 6, "context": 4096, "ubatch": 512}


@pytest.fixture
def stage(tmp_path, monkeypatch) -> Stage:
    """Knows the processes of this test; none may be left."""
    place = Stage(tmp_path)
    monkeypatch.setenv(MARK, place.mark)
    return place


@pytest.fixture
def fake(tmp_path, stage):
    """A machine, empty again after the test."""
    made = FakeMachine(tmp_path, machine())
    yield made
    stage.wait_empty()
    assert made.owners == []


class Launch:
    """One launch with all that it told on the way."""

    def __init__(self, fake, request_plan=None, limits=Limits(), params=PARAMS, **fields) -> None:  # noqa: B008
        self.launcher = launcher(fake, limits=limits, **fields)
        self.stages = []
        self.log_path = fake.folder / "server.log"
        plan = self.launcher.plan(Candidate(params), as_served=False)
        assert isinstance(plan, LaunchPlan), plan
        self.plan = plan
        self.request_plan = request_plan or plan_measurement(WORKLOAD, 512, repeats=2)

    def run(self, check_stop=lambda: None):
        """What comes of it."""
        return self.launcher.launch(
            self.plan,
            self.request_plan,
            log_path=self.log_path,
            on_stage=self.stages.append,
            check_stop=check_stop,
        )


def test_a_good_launch_measures_all_requests(fake):
    """Warm-up and requests in order, memory at the peak, settings as they were applied."""
    launch = Launch(fake)
    result = launch.run()

    measured = result.measurement
    assert result.outcome.kind == "completed"
    assert [s.order for s in measured.samples] == [0, 1, 2]
    assert [s.is_warmup for s in measured.samples] == [True, False, False]
    assert [s.prompt_tokens for s in measured.samples] == [1024, 600, 600]
    assert launch.stages == ["load", "warmup", "prompt", "prompt", "stop"]
    assert measured.applied["n_gpu_layers"] == 13
    assert (measured.applied["context"], measured.applied["ubatch"]) == (4096, 512)
    assert measured.load_s > 0
    assert measured.peak_mib["CUDA0"] == pytest.approx(2400 - measured.free_mib["CUDA0"])
    assert measured.free_mib["CUDA0"] < 1500
    assert "listening" in launch.log_path.read_text()
    assert str(fake.server) in launch.plan.argv[0]


def test_a_launch_with_little_left_fills_its_context(tmp_path, stage):
    """With room it is not asked, with little it holds, and with next to none it dies there."""
    params = {**PARAMS, "context": 16384, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    fill = FullContextCheck(make_full_context_request(16384), {"CUDA0": 64.0})
    request_plan = replace(plan_measurement(WORKLOAD, 512, repeats=1), full_context_check=fill)

    def run(name, taken_mib):
        device = replace(CARD, other_mib=taken_mib)
        fake = FakeMachine(tmp_path / name, replace(machine(), devices=(device,)))
        return Launch(fake, request_plan, params=params).run()

    roomy = run("roomy", 0.0)
    left_mib = roomy.measurement.free_mib["CUDA0"]
    tight, edge = run("tight", left_mib - 40), run("edge", left_mib - 2)

    assert [s.prompt_tokens for s in roomy.measurement.samples] == [1024, 600]
    assert [s.prompt_tokens for s in tight.measurement.samples] == [1024, 600, 16384 - 64 - 8]
    assert tight.measurement.samples[-1].is_warmup
    assert (tight.outcome.kind, edge.outcome.kind) == ("completed", "out_of_memory")
    assert (edge.outcome.stage, edge.outcome.buffer) == ("prompt", "pool")
    assert len(edge.measurement.samples) == 2


def test_what_the_user_lets_a_device_hold_counts_as_its_room(tmp_path, stage):
    """A card with much free memory of which little is allowed has little left."""
    fake = FakeMachine(tmp_path, machine())
    request_plan = plan_measurement(WORKLOAD, 512, repeats=1)
    fill = FullContextCheck(make_full_context_request(4096), {"CUDA0": 64.0})
    used = Launch(fake, request_plan).run().measurement.peak_mib["CUDA0"]
    for limit_mib, count in ((used + 500.0, 2), (used + 10.0, 3)):
        launch = Launch(
            fake, replace(request_plan, full_context_check=fill), limits_mib={"CUDA0": limit_mib}
        )
        assert len(launch.run().measurement.samples) == count


def test_loading_only_asks_nothing(fake):
    """The cheapest request_plan has no samples, and still knows what was applied."""
    result = Launch(fake, plan_without_measurement()).run()

    assert result.outcome.kind == "completed"
    assert result.measurement.samples == ()
    assert result.measurement.applied["context"] == 4096


def test_prompts_are_cut_to_the_slot(fake):
    """A request never exceeds what one of several slots holds."""
    launch = Launch(fake, params={**PARAMS, "context": 1024, "parallel": 2})
    result = launch.run()

    assert result.outcome.kind == "completed"
    assert {s.prompt_tokens for s in result.measurement.samples} == {512 - 64 - 8}


def test_requests_go_out_side_by_side(fake):
    """As many at once as the workload says, each answered."""
    workload = Workload("pair", context=4096, parallel=2, requests=(Request(600, 8),))
    launch = Launch(fake, params={**PARAMS, "parallel": 2})
    launch.launcher.workload = workload
    result = launch.run()

    assert result.outcome.kind == "completed"
    assert [s.request for s in result.measurement.samples] == [-1, -1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fault", "kind", "when", "detail"),
    [
        ("oom-weights", "out_of_memory", "load", ("device", "weights")),
        ("oom-kv", "out_of_memory", "context", ("device", "kv")),
        ("oom-compute", "out_of_memory", "context", ("device", "compute")),
        ("oom-prompt", "out_of_memory", "prompt", ("device", "pool")),
        ("host-oom", "out_of_memory", "load", ("host", "weights")),
        ("device-lost", "crashed", "prompt", "device_lost"),
        ("segfault:warmup", "crashed", "warmup", None),
        ("illegal:load", "crashed", "load", "illegal_instruction"),
        ("silent:context", "crashed", "context", None),
        ("reject-flag:--ubatch-size", "rejected", "plan", "unknown_flag"),
        ("context-reduced:512", "rejected", "load", "not_applied"),
        ("ubatch-reduced:64", "rejected", "load", "not_applied"),
        ("http-500", "crashed", "prompt", None),
        ("impossible-speed", "incorrect", "prompt", None),
        ("zero-timings", "incorrect", "prompt", None),
    ],
)
def test_every_failure_is_told_apart(fake, fault, kind, when, detail):
    """Outcome, stage and reason follow from what the process, its log and its answers show."""
    name, _, value = fault.partition(":")
    fake.fail(name, value or None)
    outcome = Launch(fake).run().outcome

    assert (outcome.kind, outcome.stage) == (kind, when), outcome
    assert outcome.evidence
    if kind == "out_of_memory":
        assert (outcome.where, outcome.buffer) == detail
    elif kind in ("crashed", "rejected"):
        assert outcome.reason == detail


@pytest.mark.parametrize("fault", ["retry-pipeline", "pinned-refused"])
def test_harmless_messages_are_no_failure(fake, fault):
    """An allocation that was tried again smaller, memory that could not be pinned."""
    fake.fail(fault)

    assert Launch(fake).run().outcome.kind == "completed"


@pytest.mark.parametrize(
    ("fault", "when"), [("hang-request", "prompt"), ("hang-generate", "generate")]
)
def test_a_request_that_hangs_has_a_limit(fake, fault, when):
    """A server that answers no more is ended when the limit of the stage has passed."""
    fake.fail(fault, 60)
    limits = Limits(prompt_s=1.0, generate_s=1.0, stop_s=1.0)
    outcome = Launch(fake, limits=limits).run().outcome

    assert outcome.kind in ("timed_out", "crashed")
    assert outcome.stage == when
    assert "within 1 s" in outcome.evidence


def test_a_stop_between_stages_leaves_nothing(fake):
    """The user's stop ends the launch where it is, and comes through."""
    launch = Launch(fake)

    def check() -> None:
        if "prompt" in launch.stages:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        launch.run(check)
    assert launch.stages == ["load", "warmup", "prompt"]


def test_a_stop_while_loading_leaves_nothing(fake):
    """It need not be waited for."""
    fake.fail("hang-load", 60)

    def check() -> None:
        if fake.owners:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Launch(fake).run(check)


def test_a_program_that_is_not_there_ends_the_run(fake):
    """That is no candidate's failure."""
    launch = Launch(fake, wrapper=("/no/such/wrapper",))

    with pytest.raises(UsageError, match="no such program"):
        launch.run()


def test_a_slow_release_is_waited_for(tmp_path, stage):
    """A driver that gives memory back late does not take it from the next launch."""
    fake = FakeMachine(tmp_path, machine(release_s=0.6))
    launch = Launch(fake, plan_without_measurement())

    first, second = launch.run(), launch.run()

    assert first.measurement.free_mib == pytest.approx(second.measurement.free_mib, rel=0.2)
    before = second.measurement.readings[0].device_used_mib["CUDA0"]
    assert before < 100
    assert second.notes == ()


class ByAddress:
    """A machine's memory counters, of which only those are known whose address was told."""

    def __init__(self, counters: MemorySource) -> None:
        self.counters = counters
        self.asked: list[dict[str, str]] = []

    def __call__(self, pci_ids: Mapping[str, str]) -> MemorySource:
        """Find the counters by the addresses."""
        self.asked.append(dict(pci_ids))
        return Known(self.counters, tuple(pci_ids))


@dataclass(frozen=True, slots=True)
class Known:
    """The counters of some devices."""

    counters: MemorySource
    names: tuple[str, ...]

    def read(self) -> dict[str, MemoryCounter]:
        """These devices' counters now."""
        counters = self.counters.read()
        return {name: counters[name] for name in self.names}


def test_devices_without_a_counter_have_one_once_a_log_tells_their_address(tmp_path, stage):
    """Of equal cards each is counted from the launch on that follows the first to use it."""
    cards = (CARD, replace(CARD, name="CUDA1"))
    fake = FakeMachine(tmp_path, replace(machine(), devices=cards))
    made = launcher(fake)
    made.find_memory = finder = ByAddress(made.memory)
    made.memory = NoMemorySource()

    def peaks(device: str) -> dict[str, float]:
        result = launch(made, fake.folder / "server.log", {"devices": device, "n_cpu_moe": 6})
        assert result.outcome.kind == "completed"
        found = result.measurement.peak_mib
        return {name: mib for name, mib in found.items() if name != "host" and mib is not None}

    first, second, other = peaks("CUDA0"), peaks("CUDA0"), peaks("CUDA1")
    last = peaks("CUDA1")

    assert first == {}
    assert set(second) == {"CUDA0"}
    assert second["CUDA0"] > 1000
    assert set(other) == {"CUDA0"}
    assert other["CUDA0"] < 100
    assert last["CUDA1"] == pytest.approx(second["CUDA0"], rel=0.02)
    told = {"CUDA0": "0000:06:00.0"}
    assert finder.asked == [told, {**told, "CUDA1": "0000:07:00.0"}]


def test_an_address_without_a_counter_is_tried_once(fake):
    """A device that stays unknown costs no search at every launch."""
    asked = []

    def find(pci_ids: Mapping[str, str]) -> MemorySource:
        asked.append(dict(pci_ids))
        return NoMemorySource()

    run = Launch(fake, plan_without_measurement(), find_memory=find)
    run.launcher.memory = NoMemorySource()
    run.run()
    run.run()

    assert asked == [{"CUDA0": "0000:06:00.0"}]


def test_a_device_with_a_counter_keeps_it(fake):
    """What is counted already is not looked for by address."""

    def find(pci_ids: Mapping[str, str]) -> MemorySource:
        raise AssertionError(pci_ids)

    assert (
        Launch(fake, plan_without_measurement(), find_memory=find).run().outcome.kind
        == "completed"
    )


def test_what_a_runtime_cannot_be_told_is_not_launched(fake):
    """A parameter that it does not have is rejected on paper."""
    made = launcher(fake)
    refused = made.plan(Candidate({"moe_cache_mib": 512}), as_served=False)

    assert isinstance(refused, Rejected)
    assert (refused.stage, refused.reason) == ("plan", "unknown_flag")
    assert fake.launches == 0


def test_only_measuring_switches_tell_a_plan_from_what_is_served(fake):
    """As served there is nothing that blurs or sharpens a measurement; the baseline is free."""
    made = launcher(fake)
    candidate = Candidate(PARAMS)

    measured = made.plan(candidate, as_served=False)
    served = made.plan(candidate, as_served=True)
    baseline = made.plan(Candidate({"context": 4096}), is_verbatim=True, as_served=False)

    extra = [word for word in measured.argv if word not in served.argv]
    assert "--no-cache-prompt" in extra
    assert set(served.argv) < set(measured.argv)
    assert "--fit" in served.argv
    assert "--fit" not in baseline.argv


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
