"""What a launch is judged to be, from its log and from what was seen outside."""

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
    ResourceObservation,
    judge_launch,
    reported_memory,
)
from autofit.trial.candidate import Candidate, Limits
from autofit.trial.measurement import MemoryReading, ReportedMemory
from autofit.trial.outcome import Incorrect

GOOD = "cuda-ok-ncmoe24"
PARAMS = {"n_cpu_moe": 24}
SEEN = LaunchObservation(
    candidate=Candidate(PARAMS), ready=Readiness.READY, exit_status=None, failure=None, props={},
    limits=Limits(load_s=5.0, prompt_s=7.0, generate_s=9.0),
)  # fmt: skip


@cache
def _texts() -> dict[str, str]:
    return {case.name: case.text for case in all_cases()}


@pytest.fixture
def verdict(tmp_path):
    """The verdict on a recorded log with something seen of its launch."""

    def of(name: str, **seen: object):
        path = tmp_path / "server.log"
        path.write_text(_texts()[name], encoding="utf-8")
        return judge_launch(load_dialect("llama_server"), path, replace(SEEN, **seen))

    return of


def broken(kind, stage="prompt", **more) -> RequestFailure:
    """A request that was not answered."""
    return RequestFailure(kind, stage, "what was seen", **more)


def test_a_launch_without_a_fault_is_completed(verdict):
    """Its settings are those that the runtime told, in log and props."""
    found = verdict(GOOD, props={"default_generation_settings": {"n_ctx": 16384}})

    assert found.outcome.kind == "completed"
    assert found.applied["context"] == 16384
    assert found.log.mib("weights", "CUDA0") > 1000


@pytest.mark.parametrize("taken", [True, False])
def test_slots_that_were_refused_are_memory_that_lacked(verdict, taken):
    """The server answered everything; the line of one slot and the full device tell."""
    used_mib = (100.0, 12200.0 if taken else 11000.0, 100.0)
    readings = tuple(
        MemoryReading(0.0, {"CUDA0": mib}, {"CUDA0": 12288.0 - mib}) for mib in used_mib
    )
    slots = ExpectedSlots(device="CUDA0", count=4, slot_mib=144.0)
    found = verdict(
        "cuda-prefetch-slots-shrunk", resources=ResourceObservation(readings=readings, slots=slots)
    )

    assert found.outcome.kind == ("out_of_memory" if taken else "completed")
    assert verdict("cuda-prefetch-slots-shrunk").outcome.kind == "completed"


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_cache_of_experts_is_part_of_the_context(is_counted):
    """Whether the runtime's table counts it or not, and where there is no table."""
    buffers = (
        LoggedBuffer("kv", "device", "CUDA0", 300.0),
        LoggedBuffer("cache", "device", "CUDA0", 1000.0),
    )
    row = ReportedMemory(5000.0, 1300.0 if is_counted else 300.0, 200.0)
    for log in (ServerLog(buffers=buffers, reported={"CUDA0": row}), ServerLog(buffers=buffers)):
        told = reported_memory(log)["CUDA0"]
        assert (told.context_mib, told.expert_cache_mib) == (1300.0, 1000.0)


def test_a_setting_that_was_not_applied_is_rejected(verdict):
    """The runtime went on with another context than was asked for."""
    found = verdict(GOOD, candidate=Candidate({"context": 999_936}))

    assert (found.outcome.kind, found.outcome.reason) == ("rejected", "not_applied")
    assert "999936" in found.outcome.evidence


def test_a_device_that_holds_more_than_it_is_lent_is_out_of_memory(verdict):
    """It ran, but the user does not give it so much."""
    found = verdict(GOOD, limits_mib={"CUDA0": 1000.0})

    assert (found.outcome.kind, found.outcome.device) == ("out_of_memory", "CUDA0")
    assert found.outcome.requested_mib > 1000
    assert verdict(GOOD, limits_mib={"CUDA0": 100_000.0}).outcome.kind == "completed"


@pytest.mark.parametrize(
    ("seen", "kind", "stage", "told"),
    [
        ({"ready": Readiness.TIMED_OUT}, "timed_out", None, "not ready within 5 s"),
        ({"ready": Readiness.EXITED, "exit_status": 3}, "crashed", None, "status 3"),
        ({"exit_status": 3}, "crashed", None, "status 3"),
        ({"failure": broken("timed_out")}, "timed_out", "prompt", "what was seen"),
        ({"failure": broken("timed_out", "generate")}, "timed_out", "generate", "what was"),
        ({"failure": broken("malformed")}, "incorrect", "prompt", "what was seen"),
        ({"failure": broken("disconnected")}, "crashed", "prompt", "what was seen"),
        ({"failure": broken("disconnected"), "exit_status": 3}, "crashed", None, "status 3"),
        (
            {"failure": broken("http", status=500, body="no words known")},
            "crashed",
            "prompt",
            "no words known",
        ),
        ({"failure": Incorrect("generate", "nonsense")}, "incorrect", "generate", "nonsense"),
    ],
)
def test_without_a_word_in_the_log_what_was_seen_decides(verdict, seen, kind, stage, told):
    """Each way in which a launch can end has its outcome."""
    outcome = verdict(GOOD, **seen).outcome

    assert outcome.kind == kind
    assert stage is None or outcome.stage == stage
    assert told in outcome.evidence
    assert getattr(outcome, "reason", None) is None  # that it hangs is told by standing still


def test_limits_that_passed_are_told(verdict):
    """The limit of the stage that hung."""
    limits = [
        verdict(GOOD, **seen).outcome.limit_s
        for seen in (
            {"ready": Readiness.TIMED_OUT},
            {"failure": broken("timed_out", limit_s=7.0)},
            {"failure": broken("timed_out", "generate", limit_s=9.0)},
        )
    ]

    assert limits == [5.0, 7.0, 9.0]


@pytest.mark.parametrize(
    "seen",
    [
        {"ready": Readiness.EXITED, "exit_status": -6},
        {"failure": broken("disconnected"), "exit_status": -6},
        {"failure": broken("timed_out")},
        {"failure": Incorrect("prompt", "nonsense")},
    ],
)
def test_the_logs_own_reason_wins(verdict, seen):
    """A log that says out of memory is believed, however it looked from outside."""
    outcome = verdict("cuda-first-large-batch-with-size", candidate=Candidate({}), **seen).outcome

    assert (outcome.kind, outcome.buffer, outcome.requested_mib) == (
        "out_of_memory",
        "pool",
        762.01,
    )
    assert outcome.stage == "prompt"


def test_the_client_knows_when_generation_began(verdict):
    """A log does not say that the first token went out; who received it does."""
    failure = broken("disconnected", "generate")
    found = verdict(
        "cuda-first-large-batch-with-size",
        candidate=Candidate({}),
        failure=failure,
        exit_status=-6,
    )

    assert (found.outcome.kind, found.outcome.stage) == ("out_of_memory", "generate")


def test_a_context_that_a_request_exceeds_is_rejected(verdict):
    """The server's answer names the reason that its log may not."""
    body = (
        '{"error":{"code":400,"message":"request (12001 tokens) exceeds the available context '
        'size (4096 tokens), try increasing it","type":"exceed_context_size_error"}}'
    )
    outcome = verdict(GOOD, failure=broken("http", status=400, body=body)).outcome

    assert (outcome.kind, outcome.reason) == ("rejected", "context_exceeded")
