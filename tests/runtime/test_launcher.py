"""Launches from start to stop, with real processes on a simulated machine."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from fakes.machine_fixtures import FakeMachine
from process_stage import MARK, Stage
from runtime.launch_sample import CARD, WORKLOAD, launch, launcher, machine

from autofit.errors import UsageError
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
    """Return the stage of this test, whose processes must end."""
    place = Stage(tmp_path)
    monkeypatch.setenv(MARK, place.mark)
    return place


@pytest.fixture
def fake(tmp_path, stage):
    """Return a machine; none of its memory may be in use after the test."""
    made = FakeMachine(tmp_path, machine())
    yield made
    stage.wait_empty()
    assert made.owners == []


class Launch:
    """A launch and the stages that it reported."""

    def __init__(self, fake, request_plan=None, limits=Limits(), params=PARAMS, **fields) -> None:  # noqa: B008
        self.launcher = launcher(fake, limits=limits, **fields)
        self.stages = []
        self.log_path = fake.folder / "server.log"
        plan = self.launcher.plan(Candidate(params), as_served=False)
        assert isinstance(plan, LaunchPlan), plan
        self.plan = plan
        self.request_plan = request_plan or plan_measurement(WORKLOAD, 512, repeats=2)

    def run(self):
        """Run the launch."""
        return self.launcher.launch(
            self.plan,
            self.request_plan,
            log_path=self.log_path,
            on_stage=self.stages.append,
        )


def test_completed_launch_measures_all_requests(fake):
    """A completed launch has samples in order, memory at the peak and applied settings."""
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


def test_full_context_check_depends_on_free_memory(tmp_path, stage):
    """The check is skipped with much free memory, and fails with almost none."""
    params = {**PARAMS, "context": 16384, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    check = FullContextCheck(make_full_context_request(16384), {"CUDA0": 64.0})
    request_plan = replace(plan_measurement(WORKLOAD, 512, repeats=1), full_context_check=check)

    def run(name, others_mib):
        device = replace(CARD, other_mib=others_mib)
        fake = FakeMachine(tmp_path / name, replace(machine(), devices=(device,)))
        return Launch(fake, request_plan, params=params).run()

    large = run("large", 0.0)
    left_mib = large.measurement.free_mib["CUDA0"]
    small, full = run("small", left_mib - 40), run("full", left_mib - 2)

    assert [s.prompt_tokens for s in large.measurement.samples] == [1024, 600]
    assert [s.prompt_tokens for s in small.measurement.samples] == [1024, 600, 16384 - 64 - 8]
    assert small.measurement.samples[-1].is_warmup
    assert (small.outcome.kind, full.outcome.kind) == ("completed", "out_of_memory")
    assert (full.outcome.stage, full.outcome.buffer) == ("prompt", "pool")
    assert len(full.measurement.samples) == 2


def test_limit_of_the_user_counts_as_free_memory(tmp_path, stage):
    """A device has little free memory if the user allows little of it."""
    fake = FakeMachine(tmp_path, machine())
    request_plan = plan_measurement(WORKLOAD, 512, repeats=1)
    check = FullContextCheck(make_full_context_request(4096), {"CUDA0": 64.0})
    used = Launch(fake, request_plan).run().measurement.peak_mib["CUDA0"]
    for limit_mib, count in ((used + 500.0, 2), (used + 10.0, 3)):
        launch = Launch(
            fake, replace(request_plan, full_context_check=check), limits_mib={"CUDA0": limit_mib}
        )
        assert len(launch.run().measurement.samples) == count


def test_launch_without_requests_has_no_samples(fake):
    """A launch without requests has no samples, but the applied settings."""
    result = Launch(fake, plan_without_measurement()).run()

    assert result.outcome.kind == "completed"
    assert result.measurement.samples == ()
    assert result.measurement.applied["context"] == 4096


def test_prompts_are_cut_to_the_slot(fake):
    """Prompts are cut to the context of a slot."""
    launch = Launch(fake, params={**PARAMS, "context": 1024, "parallel": 2})
    result = launch.run()

    assert result.outcome.kind == "completed"
    assert {s.prompt_tokens for s in result.measurement.samples} == {512 - 64 - 8}


def test_requests_are_sent_in_parallel(fake):
    """As many requests as the workload says are sent at the same time."""
    workload = Workload("pair", context=4096, parallel=2, requests=(Request(600, 8),))
    launch = Launch(fake, params={**PARAMS, "parallel": 2})
    launch.launcher.workload = workload
    result = launch.run()

    assert result.outcome.kind == "completed"
    assert [s.request for s in result.measurement.samples] == [-1, -1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fault", "kind", "at_stage", "detail"),
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
def test_failures_have_outcome_stage_and_reason(fake, fault, kind, at_stage, detail):
    """Every failure of a process, its log or its answers has its outcome."""
    name, _, value = fault.partition(":")
    fake.fail(name, value or None)
    outcome = Launch(fake).run().outcome

    assert (outcome.kind, outcome.stage) == (kind, at_stage), outcome
    assert outcome.evidence
    if kind == "out_of_memory":
        assert (outcome.where, outcome.buffer) == detail
    elif kind in ("crashed", "rejected"):
        assert outcome.reason == detail


@pytest.mark.parametrize("fault", ["retry-pipeline", "pinned-refused"])
def test_harmless_messages_are_not_failures(fake, fault):
    """A repeated allocation and memory that cannot be pinned are not failures."""
    fake.fail(fault)

    assert Launch(fake).run().outcome.kind == "completed"


@pytest.mark.parametrize(
    ("fault", "at_stage"), [("hang-request", "prompt"), ("hang-generate", "generate")]
)
def test_hanging_request_ends_at_its_limit(fake, fault, at_stage):
    """A server that stops answering is stopped at the time limit of the stage."""
    fake.fail(fault, 60)
    limits = Limits(prompt_s=1.0, generate_s=1.0, stop_s=1.0)
    outcome = Launch(fake, limits=limits).run().outcome

    assert outcome.kind in ("timed_out", "crashed")
    assert outcome.stage == at_stage
    assert "within 1 s" in outcome.evidence


@pytest.mark.parametrize("at_stage", ["load", "prompt"])
def test_a_stop_ends_the_launch(fake, at_stage):
    """Ctrl-C in any stage is raised, and leaves no server."""
    launch = Launch(fake)

    def stop_at(reached: str) -> None:
        if reached == at_stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.launcher.launch(
            launch.plan, launch.request_plan, log_path=launch.log_path, on_stage=stop_at
        )
    assert fake.owners == []


def test_missing_program_ends_the_run(fake):
    """A missing program is an error, not an outcome."""
    launch = Launch(fake, wrapper=("/no/such/wrapper",))

    with pytest.raises(UsageError, match="no such program"):
        launch.run()


def test_slow_release_of_memory_is_awaited(tmp_path, stage):
    """A launch ends only when the driver has released the memory."""
    fake = FakeMachine(tmp_path, machine(release_s=0.6))
    launch = Launch(fake, plan_without_measurement())

    first, second = launch.run(), launch.run()

    assert first.measurement.free_mib == pytest.approx(second.measurement.free_mib, rel=0.2)
    before = second.measurement.readings[0].device_used_mib["CUDA0"]
    assert before < 100
    assert second.notes == ()


class CountersByAddress:
    """Memory counters that are found only by PCI address."""

    def __init__(self, counters: MemorySource) -> None:
        self.counters = counters
        self.calls: list[dict[str, str]] = []

    def __call__(self, pci_ids: Mapping[str, str]) -> MemorySource:
        """Return the counters of these addresses."""
        self.calls.append(dict(pci_ids))
        return SomeCounters(self.counters, tuple(pci_ids))


@dataclass(frozen=True, slots=True)
class SomeCounters:
    """The counters of some devices."""

    counters: MemorySource
    names: tuple[str, ...]

    def read(self) -> dict[str, MemoryCounter]:
        """Return the counters of these devices."""
        counters = self.counters.read()
        return {name: counters[name] for name in self.names}


def test_counters_are_found_by_the_logged_address(tmp_path, stage):
    """A device has a counter after the first launch that logs its address."""
    cards = (CARD, replace(CARD, name="CUDA1"))
    fake = FakeMachine(tmp_path, replace(machine(), devices=cards))
    made = launcher(fake)
    made.find_memory = finder = CountersByAddress(made.memory)
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
    first_call = {"CUDA0": "0000:06:00.0"}
    assert finder.calls == [first_call, {**first_call, "CUDA1": "0000:07:00.0"}]


def test_address_without_a_counter_is_tried_once(fake):
    """An address without a counter is not searched for again."""
    calls = []

    def find(pci_ids: Mapping[str, str]) -> MemorySource:
        calls.append(dict(pci_ids))
        return NoMemorySource()

    run = Launch(fake, plan_without_measurement(), find_memory=find)
    run.launcher.memory = NoMemorySource()
    run.run()
    run.run()

    assert calls == [{"CUDA0": "0000:06:00.0"}]


def test_device_with_a_counter_is_not_searched_for(fake):
    """Counters are not searched for by address if all devices have one."""

    def find(pci_ids: Mapping[str, str]) -> MemorySource:
        raise AssertionError(pci_ids)

    assert (
        Launch(fake, plan_without_measurement(), find_memory=find).run().outcome.kind
        == "completed"
    )


def test_unsupported_setting_is_rejected_without_a_launch(fake):
    """A parameter that the runtime does not have is rejected before a launch."""
    made = launcher(fake)
    refused = made.plan(Candidate({"moe_cache_mib": 512}), as_served=False)

    assert isinstance(refused, Rejected)
    assert (refused.stage, refused.reason) == ("plan", "unknown_flag")
    assert fake.launches == 0


def test_measuring_adds_switches_to_the_served_command(fake):
    """Measuring adds switches to the served command, and the baseline has no --fit off."""
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


# With this usage of other programs, the candidate leaves 40 MiB free.
OTHERS_MIB = 1172.0
# All other requests are shorter.
LONG_TOKENS = 3000


@pytest.fixture
def fill_context(tmp_path, monkeypatch):
    """Launch a candidate with little free memory and a fault; no process may be left."""
    stage = Stage(tmp_path)
    monkeypatch.setenv(MARK, stage.mark)
    made_on = []

    def run(
        fault: str = "",
        *,
        context: int = 4096,
        others_mib: float = OTHERS_MIB,
        limits: Limits = Limits(),  # noqa: B008
    ) -> LaunchResult:
        card = replace(CARD, other_mib=others_mib)
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
        )

    yield run
    stage.wait_empty()
    assert all(fake.owners == [] for fake in made_on)


@pytest.mark.parametrize(
    ("fault", "kind", "stage", "detail"),
    [
        # Without a message on an almost full device: out of memory.
        ("segfault:prompt", "out_of_memory", "prompt", "device"),
        ("oom-decode", "out_of_memory", "prompt", "device"),
        # With gigabytes of free host memory, a kill has another reason.
        ("killed:prompt", "crashed", "prompt", "killed"),
        ("abort:prompt", "crashed", "prompt", None),
        ("event-500", "crashed", "generate", None),
        ("no-slot", "crashed", "prompt", None),
        ("slot-shrunk:2048", "rejected", "prompt", "context_exceeded"),
        ("hang-generate:60", "crashed", "generate", "hang"),
    ],
)
def test_failures_of_a_full_context_check(fill_context, fault, kind, stage, detail):
    """The outcome is that of the check, and the samples before it are kept."""
    result = fill_context(fault, limits=Limits(prompt_s=1.5, generate_s=1.5, stop_s=1.0))

    outcome = result.outcome
    assert (outcome.kind, outcome.stage) == (kind, stage), outcome
    if kind == "out_of_memory":
        assert outcome.where == detail
    elif kind in ("crashed", "rejected"):
        assert outcome.reason == detail
    assert [sample.is_warmup for sample in result.measurement.samples] == [True, False]


def test_interrupt_during_a_full_context_check(fill_context):
    """An interrupt during the check stops the server and frees its memory."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            fill_context("hang-request:60")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_time_limit_grows_with_the_context(fill_context):
    """A prompt that is many times longer than usual has a longer time limit."""
    limits = Limits(prompt_s=1.0)

    result = fill_context("hang-request:1.5", context=98304, others_mib=0.0, limits=limits)

    assert result.outcome.kind == "completed"
    assert result.measurement.samples[-1].prompt_tokens == 98304 - 64 - 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wrong-timings", {"prompt_ms": float("nan")}),
        ("wrong-timings", {"predicted_ms": float("inf")}),
        ("wrong-timings", {"prompt_ms": 10**400}),
        ("wrong-event", [1]),
        ("wrong-event", None),
        ("wrong-last-event", {"tokens": "5"}),
        ("wrong-last-event", {"completion_probabilities": [5]}),
        ("endless", "/props"),
        ("endless", "/completion"),
        ("drip", "/completion"),
        ("endless", "/tokenize"),
    ],
)
def test_wrong_answers_are_incorrect(fake, name, value):
    """A launch with answers of another form is incorrect, and the evidence is not empty."""
    fake.fail(name, value)
    result = Launch(fake, params={"devices": "CUDA0", "n_gpu_layers": 0, "context": 4096}).run()

    assert result.outcome.kind == "incorrect", result.outcome
    assert result.outcome.evidence


def test_error_code_that_is_a_text_is_a_crash(fake):
    """An error event without a numeric code is a failure of the request."""
    fake.fail("wrong-event", {"error": {"code": "full", "message": "no"}})
    result = Launch(fake, params={"devices": "CUDA0", "n_gpu_layers": 0, "context": 4096}).run()

    assert (result.outcome.kind, result.outcome.evidence) == ("crashed", "no")
