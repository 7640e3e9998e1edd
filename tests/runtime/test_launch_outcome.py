"""The outcome of a launch from its log and observations."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from runtime.log_corpus import all_cases

from autofit.process.managed_process import Readiness
from autofit.runtime.diagnosis.memory_evidence import ExpectedSlots
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.logs.server_log import LoggedBuffer, ServerLog
from autofit.runtime.server.client import RequestFailure
from autofit.runtime.server.launch_outcome import (
    LaunchObservation,
    judge_launch,
    reported_memory,
)
from autofit.trial.candidate import Candidate, Limits
from autofit.trial.measurement import MemoryReading, ReportedMemory
from autofit.trial.outcome import Incorrect

GOOD = "cuda-ok-ncmoe24"
PARAMS = {"n_cpu_moe": 24}
OBSERVATION = LaunchObservation(
    candidate=Candidate(PARAMS), ready=Readiness.READY, exit_status=None, failure=None, props={},
    limits=Limits(load_s=5.0, prompt_s=7.0, generate_s=9.0),
)  # fmt: skip


@cache
def _texts() -> dict[str, str]:
    return {case.name: case.text for case in all_cases()}


@pytest.fixture
def verdict(tmp_path):
    """Judge a recorded log with changed observations."""

    def of(name: str, **changes: object):
        path = tmp_path / "server.log"
        path.write_text(_texts()[name], encoding="utf-8")
        return judge_launch(load_dialect("llama_server"), path, replace(OBSERVATION, **changes))

    return of


def failed(kind, stage="prompt", **more) -> RequestFailure:
    """Return a failed request."""
    return RequestFailure(kind, stage, "the detail", **more)


def test_launch_without_a_failure_is_completed(verdict):
    """The applied settings come from the log and the props."""
    found = verdict(GOOD, props={"default_generation_settings": {"n_ctx": 16384}})

    assert found.outcome.kind == "completed"
    assert found.applied["context"] == 16384
    assert found.log.mib("weights", "CUDA0") > 1000


@pytest.mark.parametrize("is_full", [True, False])
def test_refused_slots_are_out_of_memory(verdict, is_full):
    """A failed allocation of a slot on a full device is out of memory."""
    used_mib = (100.0, 12200.0 if is_full else 11000.0, 100.0)
    readings = tuple(
        MemoryReading(0.0, {"CUDA0": mib}, {"CUDA0": 12288.0 - mib}) for mib in used_mib
    )
    slots = ExpectedSlots(device="CUDA0", count=4, slot_mib=144.0)
    found = verdict("cuda-prefetch-slots-shrunk", readings=readings, slots=slots)

    assert found.outcome.kind == ("out_of_memory" if is_full else "completed")
    assert verdict("cuda-prefetch-slots-shrunk").outcome.kind == "completed"


@pytest.mark.parametrize("is_counted", [True, False])
def test_expert_cache_is_part_of_the_context(is_counted):
    """The expert cache counts as context with any memory table, and without one."""
    buffers = (
        LoggedBuffer("kv", "device", "CUDA0", 300.0),
        LoggedBuffer("cache", "device", "CUDA0", 1000.0),
    )
    row = ReportedMemory(5000.0, 1300.0 if is_counted else 300.0, 200.0)
    for log in (ServerLog(buffers=buffers, reported={"CUDA0": row}), ServerLog(buffers=buffers)):
        memory = reported_memory(log)["CUDA0"]
        assert (memory.context_mib, memory.expert_cache_mib) == (1300.0, 1000.0)


def test_unapplied_setting_is_rejected(verdict):
    """A launch with another context than requested is rejected."""
    found = verdict(GOOD, candidate=Candidate({"context": 999_936}))

    assert (found.outcome.kind, found.outcome.reason) == ("rejected", "not_applied")
    assert "999936" in found.outcome.evidence


def test_device_over_the_users_limit_is_out_of_memory(verdict):
    """A launch that uses more of a device than the user allows is out of memory."""
    found = verdict(GOOD, limits_mib={"CUDA0": 1000.0})

    assert (found.outcome.kind, found.outcome.device) == ("out_of_memory", "CUDA0")
    assert found.outcome.requested_mib > 1000
    assert verdict(GOOD, limits_mib={"CUDA0": 100_000.0}).outcome.kind == "completed"


def test_device_without_headroom_is_out_of_memory(verdict):
    """A launch that leaves less than the headroom does not fit; an unknown rest says nothing."""
    headroom_mib = {"CUDA0": 64.0}
    for free_mib, kind in ((40.0, "out_of_memory"), (64.0, "completed"), (None, "completed")):
        found = verdict(GOOD, headroom_mib=headroom_mib, free_mib={"CUDA0": free_mib})
        assert found.outcome.kind == kind


@pytest.mark.parametrize(
    ("observed", "kind", "stage", "evidence"),
    [
        ({"ready": Readiness.TIMED_OUT}, "timed_out", None, "not ready within 5 s"),
        ({"ready": Readiness.EXITED, "exit_status": 3}, "crashed", None, "status 3"),
        ({"exit_status": 3}, "crashed", None, "status 3"),
        ({"failure": failed("timed_out")}, "timed_out", "prompt", "the detail"),
        ({"failure": failed("timed_out", "generate")}, "timed_out", "generate", "the detail"),
        ({"failure": failed("malformed")}, "incorrect", "prompt", "the detail"),
        ({"failure": failed("disconnected")}, "crashed", "prompt", "the detail"),
        ({"failure": failed("disconnected"), "exit_status": 3}, "crashed", None, "status 3"),
        (
            {"failure": failed("http", status=500, body="unknown text")},
            "crashed",
            "prompt",
            "unknown text",
        ),
        ({"failure": Incorrect("generate", "nonsense")}, "incorrect", "generate", "nonsense"),
    ],
)
def test_observations_decide_without_a_logged_failure(verdict, observed, kind, stage, evidence):
    """Each end of a launch has its outcome."""
    outcome = verdict(GOOD, **observed).outcome

    assert outcome.kind == kind
    assert stage is None or outcome.stage == stage
    assert evidence in outcome.evidence
    assert getattr(outcome, "reason", None) is None


def test_exceeded_limits_are_reported(verdict):
    """The outcome has the time limit of the stage that hung."""
    limits = [
        verdict(GOOD, **observed).outcome.limit_s
        for observed in (
            {"ready": Readiness.TIMED_OUT},
            {"failure": failed("timed_out", limit_s=7.0)},
            {"failure": failed("timed_out", "generate", limit_s=9.0)},
        )
    ]

    assert limits == [5.0, 7.0, 9.0]


@pytest.mark.parametrize(
    "observed",
    [
        {"ready": Readiness.EXITED, "exit_status": -6},
        {"failure": failed("disconnected"), "exit_status": -6},
        {"failure": failed("timed_out")},
        {"failure": Incorrect("prompt", "nonsense")},
    ],
)
def test_logged_failure_takes_precedence(verdict, observed):
    """A logged failure takes precedence over observations."""
    log = "cuda-first-large-batch-with-size"
    outcome = verdict(log, candidate=Candidate({}), **observed).outcome

    assert (outcome.kind, outcome.buffer) == ("out_of_memory", "pool")
    assert outcome.requested_mib == 762.01
    assert outcome.stage == "prompt"


def test_client_knows_the_stage(verdict):
    """The stage is generation if the client has received a token."""
    failure = failed("disconnected", "generate")
    found = verdict(
        "cuda-first-large-batch-with-size",
        candidate=Candidate({}),
        failure=failure,
        exit_status=-6,
    )

    assert (found.outcome.kind, found.outcome.stage) == ("out_of_memory", "generate")


def test_exceeded_context_is_rejected(verdict):
    """The reason is read from the server's response."""
    body = (
        '{"error":{"code":400,"message":"request (12001 tokens) exceeds the available context '
        'size (4096 tokens), try increasing it","type":"exceed_context_size_error"}}'
    )
    outcome = verdict(GOOD, failure=failed("http", status=400, body=body)).outcome

    assert (outcome.kind, outcome.reason) == ("rejected", "context_exceeded")
