"""The diagnosis of every log of the corpus, and properties of all diagnoses."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.log_corpus import FORMATS, LogCase, all_cases, real_cases, spliced_cases

from autofit.process.bounded_log import LARGEST_BYTES, BoundedLog
from autofit.runtime.diagnosis.diagnose import (
    Diagnosis,
    diagnose,
    diagnose_response,
    diagnosis_to_dict,
)
from autofit.runtime.diagnosis.exit_status import parse_exit_status
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.logs.log_line import read_lines

CASES = {case.name: case for case in all_cases()}
HEALTHY = [case for case in real_cases() if case.kind == "completed"]
FAILED = [case for case in real_cases() if case.kind != "completed"]
HELP = Path(__file__).parent.parent / "data" / "help"
# Formats of a log with the same messages.
SAME_TEXT_FORMATS = ("bare", "jsonl", "colors", "crlf", "journal")


def diagnose_text(text: str, exit_status: str | int | None = None) -> Diagnosis:
    """Return the diagnosis of a log in llama-server's dialect."""
    status = None if exit_status is None else parse_exit_status(str(exit_status))
    lines = read_lines(io.BytesIO(text.encode()))
    return diagnose(lines, load_dialect("llama_server"), exit_status=status)


def assert_as_expected(case: LogCase, diagnosis: Diagnosis) -> None:
    """Compare with the expected values of a log; sizes to a hundredth of a MiB."""
    found = diagnosis_to_dict(diagnosis)
    expected = {"kind": case.kind, **case.expect}
    for key, value in expected.items():
        if isinstance(value, float):
            value = pytest.approx(value, abs=0.01)  # noqa: PLW2901 - the same value, less strict
        assert found[key] == value, f"{key}: {found}"


@pytest.mark.parametrize("name", CASES)
def test_log_has_the_expected_diagnosis(name: str):
    """The kind and all expected values of a log are found."""
    case = CASES[name]

    diagnosis = diagnose_text(case.text, case.exit)

    assert_as_expected(case, diagnosis)


@pytest.mark.parametrize("case", FAILED[::9], ids=lambda case: case.name)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_cause_in_a_long_log_is_found(case, is_first, tmp_path):
    """A failure is found before and after more output than a log file keeps."""
    log = BoundedLog(tmp_path / "server.log")
    noise = b"srv  update: progress\n" * (LARGEST_BYTES // 10)
    text = case.text.encode()
    for part in (text, noise) if is_first else (noise, text):
        log.write(part)
    log.close()

    status = None if case.exit is None else parse_exit_status(case.exit)
    with (tmp_path / "server.log").open("rb") as stream:
        found = diagnose(read_lines(stream), load_dialect("llama_server"), exit_status=status)

    assert_as_expected(case, found)


def test_corpus_is_large_enough():
    """More than 60 failures are inserted into real logs, and all names are unique."""
    assert len(spliced_cases()) > 60
    assert len(CASES) == len(all_cases())


@pytest.mark.parametrize("name", CASES)
def test_evidence_is_a_line_of_the_log(name: str):
    """The evidence of a failure is in the log, or ends with its last line."""
    case = CASES[name]

    diagnosis = diagnose_text(case.text, case.exit)

    if diagnosis.is_failure:
        line = diagnosis.evidence.partition("last line: ")[2] or diagnosis.evidence
        as_json = line.replace('"', '\\"')
        assert line
        assert line in case.text or as_json in case.text


PLAIN = [
    case
    for case in spliced_cases()
    if not case.is_formatted and case.kind not in {"completed", "unknown"}
]


@pytest.mark.parametrize("format_name", SAME_TEXT_FORMATS)
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_format_of_a_log_does_not_matter(case: LogCase, format_name: str):
    """Prefixes, colours, JSON, line ends and a journal's format do not change the diagnosis."""
    lines = FORMATS[format_name](case.text.splitlines(), [])

    diagnosis = diagnose_text("".join(f"{line}\n" for line in lines), case.exit)

    assert_as_expected(case, diagnosis)


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_healthy_log_has_no_failure_at_any_length(case: LogCase):
    """The log of a server that still runs never has a failure."""
    lines = case.text.splitlines(keepends=True)

    kinds = {diagnose_text("".join(lines[:end])).kind for end in range(0, len(lines), 7)}

    assert kinds <= {"completed", "unknown"}


@given(case=st.sampled_from(FAILED), part=st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_failed_log_has_no_other_failure_at_any_length(case: LogCase, part: float):
    """A log that is cut anywhere has its own failure, none, or a crash without a reason.

    ggml prints a failed assertion before the line with the reason.
    """
    diagnosis = diagnose_text(case.text[: int(part * len(case.text))])

    is_unexplained_crash = diagnosis.kind == "crashed" and diagnosis.reason is None
    assert is_unexplained_crash or diagnosis.kind in {"unknown", "completed", case.kind}


@pytest.mark.parametrize("path", sorted(HELP.glob("*.txt")), ids=lambda path: path.stem)
def test_help_text_has_no_failure(path: Path):
    """Flags that a help text reports as removed are not failures."""
    assert diagnose_text(path.read_text(encoding="utf-8")).kind == "unknown"


@given(case=st.sampled_from(HEALTHY), part=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_kill_without_a_message_is_host_memory(case: LogCase, part: float):
    """SIGKILL without a stop is attributed to the host's memory, at any point of the log."""
    lines = case.text.splitlines(keepends=True)
    stop = next(
        (n for n, line in enumerate(lines) if "cleaning up before exit" in line), len(lines)
    )

    diagnosis = diagnose_text("".join(lines[: int(part * stop)]), -9)

    assert (diagnosis.kind, diagnosis.reason) == ("out_of_memory", "killed")
    assert diagnosis_to_dict(diagnosis)["where"] == "host"


@given(text=st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_is_accepted(text: str):
    """Any text can be diagnosed, and the evidence of a failure is in the text."""
    diagnosis = diagnose_text(text)

    assert diagnosis.kind in {"unknown", "completed"} or diagnosis.outcome.evidence in text


def test_lines_of_router_children_can_be_mixed():
    """The lines of a failing and a healthy child are separated in any order."""
    failing = [f"[34157] {line}" for line in CASES["cuda-oom-kv"].text.splitlines()]
    healthy = [f"[34158] {line}" for line in CASES["cuda-ok-ncmoe24"].text.splitlines()]
    for seed in range(20):
        order = ["f"] * len(failing) + ["h"] * len(healthy)
        random.Random(seed).shuffle(order)
        rest = {"f": iter(failing), "h": iter(healthy)}

        diagnosis = diagnose_text("\n".join(next(rest[which]) for which in order))

        assert_as_expected(CASES["cuda-oom-kv"], diagnosis)
        assert diagnosis.child == "34157"


def test_last_failed_run_is_diagnosed():
    """Of several failed runs the last one is diagnosed."""
    text = CASES["cuda-oom-load"].text + CASES["cuda-oom-kv"].text

    assert_as_expected(CASES["cuda-oom-kv"], diagnose_text(text))


def test_failure_before_completed_runs_is_diagnosed():
    """If only an earlier run failed, it is diagnosed."""
    text = CASES["cuda-oom-load"].text + 3 * CASES["cuda-ok-ncmoe24"].text

    assert_as_expected(CASES["cuda-oom-load"], diagnose_text(text))


@pytest.mark.parametrize(
    ("status", "kind", "reason", "stage"),
    [
        (0, "completed", None, "stop"),
        (1, "completed", None, "stop"),
        (-9, "crashed", "killed", "stop"),
        (-11, "crashed", None, "stop"),
        (-15, "crashed", "killed", "stop"),
    ],
)
def test_exit_during_a_stop_is_not_out_of_memory(
    status: int, kind: str, reason: str | None, stage: str
):
    """Signals during a stop are not attributed to memory."""
    diagnosis = diagnose_text(CASES["cuda-ok-ncmoe24"].text, status)

    assert (diagnosis.kind, diagnosis.reason, diagnosis.stage) == (kind, reason, stage)


@pytest.mark.parametrize(
    ("free_mib", "kind", "device"),
    [
        ({"CUDA0": 2000.0, "CUDA1": 40.0}, "out_of_memory", "CUDA1"),
        ({"CUDA0": 2000.0, "CUDA1": 3000.0}, "crashed", None),
        ({"CUDA0": None, "CUDA1": None}, "crashed", None),
    ],
)
def test_exit_without_a_message_is_memory_if_a_device_was_full(
    free_mib: dict[str, float | None], kind: str, device: str | None
):
    """The free memory at the peak decides about an exit without a message at a prompt."""
    text = CASES["cuda2-ncmoe20-ts30-11"].text
    lines = text[: text.index("n_tokens = 4096")].splitlines()

    diagnosis = diagnose(lines, load_dialect("llama_server"), exit_status=-6, free_mib=free_mib)

    assert diagnosis.kind == kind
    assert diagnosis_to_dict(diagnosis)["device"] == device


def test_empty_log_is_unknown():
    """The outcome of an empty log is not known."""
    assert diagnose_text("").kind == "unknown"


def error(message: str, code: int = 500) -> str:
    """Return the body of an error response."""
    return json.dumps({"error": {"code": code, "message": message, "type": "server_error"}})


TOO_LONG = "request (3000 tokens) exceeds the available context size (1024 tokens)"
NO_UTF8 = "The model produced output that does not match the expected Content-only format"


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason"),
    [
        (200, '{"content": "hello"}', None, None),
        (503, error("Loading model", 503), None, None),
        (500, error(NO_UTF8), None, None),
        (400, error(TOO_LONG, 400), "rejected", "context_exceeded"),
        (500, error("Context size has been exceeded."), "rejected", "context_exceeded"),
        (500, error("Compute error."), "crashed", None),
        (500, error("decode() failed: vk: ErrorDeviceLost"), "crashed", "device_lost"),
        (500, error("decode() failed: vk: ErrorOutOfDeviceMemory"), "out_of_memory", None),
        (200, f'data: {{"content":"a"}}\n\ndata: {error("Compute error.")}\n', "crashed", None),
        (404, error("File Not Found", 404), "rejected", "bad_value"),
        (500, "<html>", "crashed", None),
    ],
)
def test_responses_are_diagnosed(status: int, body: str, kind: str | None, reason: str | None):
    """An HTTP response is a failure of the candidate, or is harmless."""
    outcome = diagnose_response(status, body, load_dialect("llama_server"))

    assert (outcome.kind if outcome else None) == kind
    assert getattr(outcome, "reason", None) == reason
