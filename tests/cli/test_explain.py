"""`autofit explain`, run as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from runtime.log_corpus import FOLDER, all_cases

CASES = {case.name: case for case in all_cases()}
KEYS = {
    "kind",
    "where",
    "buffer",
    "stage",
    "device",
    "requested_mib",
    "reason",
    "evidence",
    "advice",
    "notices",
    "expert_cache_mib",
    "refused_mib",
}


def explain(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    argv = [sys.executable, "-m", "autofit", "explain", *words]
    return subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=50, check=False
    )


def explained(*words: str, text: str | None = None) -> dict[str, Any]:
    """Return the JSON document of a run that must succeed."""
    done = explain("--json", *words, text=text)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found) == KEYS
    return found


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF\x03\0\0\0" + bytes(64),
        b"\x1f\x8b\x08\0abc",
        bytes(range(256)) * 16,
        bytes(100) + b"\x01\x02\x03\xff" * 9,
    ],
)
def test_a_file_without_text_is_refused(content, tmp_path):
    """A model, a compressed log and other bytes are usage errors, as a file and on stdin."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with path.open("rb") as file:
        stdin = subprocess.run(
            [sys.executable, "-m", "autofit", "explain", "-"],
            stdin=file, capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
    for done in (explain(str(path)), stdin):
        assert (done.returncode, done.stdout) == (2, "")
        assert "hint: " in done.stderr or "not text" in done.stderr


@pytest.mark.parametrize("head", [bytes(5000), b"\xff\xfe damaged \x00 bytes\n", b""])
def test_a_damaged_log_is_explained(head, tmp_path):
    """Zero bytes at the beginning and a few damaged bytes are accepted."""
    path = tmp_path / "server.log"
    path.write_bytes(head + (FOLDER / "out_of_memory" / "cuda-oom-load.log").read_bytes())

    assert explain(str(path)).returncode == 0


def test_a_log_file_is_explained():
    """The document has kind, place, size, evidence and advice."""
    found = explained(str(FOLDER / "out_of_memory" / "cuda-oom-load.log"))

    assert found["kind"] == "out_of_memory"
    assert (found["where"], found["buffer"], found["stage"]) == ("device", "weights", "load")
    assert (found["device"], found["requested_mib"]) == ("CUDA0", 17833.71)
    assert "cudaMalloc failed: out of memory" in found["evidence"]
    assert found["advice"][0].startswith("raise n_cpu_moe by at least 15")
    assert found["reason"] is None


def test_stdin_is_explained():
    """A dash reads stdin."""
    found = explained("-", text=CASES["router-second-child-out-of-memory"].text)

    assert (found["kind"], found["device"]) == ("out_of_memory", "CUDA0")


@pytest.mark.parametrize("status", ["137", "-9", "SIGKILL"])
def test_an_exit_status_explains_an_end_without_a_message(status: str):
    """A log without an error is unknown, and with SIGKILL out of host memory."""
    text = CASES["stopped-while-loading"].text

    found = explained("-", "--exit", status, text=text)

    assert (found["kind"], found["where"], found["reason"]) == ("out_of_memory", "host", "killed")


def test_the_text_has_headline_evidence_and_advice():
    """The headline comes first; evidence and advice follow."""
    done = explain(str(FOLDER / "out_of_memory" / "cuda-oom-kv.log"))

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == (
        "out of memory while making the context: KV cache on CUDA0, 10240.0 MiB requested"
    )
    assert lines[1].startswith("  evidence  ggml_backend_cuda_buffer_type_alloc_buffer")
    assert lines[2].startswith("  try       ")
    assert "q8_0" in lines[2]


def test_expert_caches_and_refused_slots_are_reported():
    """A cache is reported by device, and a survived refusal by its size."""
    cached = explained("-", text=CASES["moe-cache-on"].text)
    shrunk = explain("-", text=CASES["cuda-prefetch-slots-shrunk"].text)

    assert cached["expert_cache_mib"] == {"CUDA0": 2048.0}
    assert shrunk.stdout.startswith("completed: no failure in this log")
    assert "144 MiB" in shrunk.stdout
    assert "prefetch slot" in shrunk.stdout


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("cuda-ok-ncmoe24", "completed: no failure in this log"),
        ("stopped-while-loading", "unknown: the log ends while loading"),
        ("unknown-flag", "rejected before loading: unknown flag"),
        ("pinned-refused-fatally", "out of memory while loading: weights on pinned memory, "),
    ],
)
def test_headlines_are_plain(name: str, headline: str):
    """Every kind has its own headline."""
    done = explain("-", text=CASES[name].text)

    assert done.stdout.startswith(headline)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such.log"], "cannot read no-such.log"),
        ([str(FOLDER)], "it is a folder"),
        (["-", "--exit", "later"], "not an exit status: later"),
        (["-", "--dialect", "none"], "unknown dialect 'none'"),
        ([], "Missing argument"),
    ],
)
def test_an_unreadable_log_is_a_usage_error(words: list[str], message: str):
    """A wrong argument ends with 2 and an error, as JSON too."""
    done = explain("--json", *words, text="")

    assert done.returncode == 2
    assert message in json.loads(done.stdout)["error"]["message"]
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", ["requests", "prose"])
def test_a_gigabyte_is_explained_in_bounded_memory(tmp_path: Path, words: str):
    """A log of 1 GB needs no more memory than one of 1 MB, and its last line still counts."""
    sizes = []
    for megabytes in (1, 1000):
        log = tmp_path / f"{megabytes}.log"
        _write_log(log, megabytes * 1_000_000, words)
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "autofit", "explain", str(log), "--json"],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        log.unlink()
        sizes.append(usage.ru_maxrss / 1024)
        print(f"{words}: {megabytes} MB, {megabytes / seconds:.0f} MB/s, {sizes[-1]:.0f} MiB")

        assert (found["kind"], found["buffer"], found["device"]) == (
            "out_of_memory",
            "pool",
            "CUDA0",
        )

    assert sizes[1] < sizes[0] + 30


def _write_log(path: Path, size: int, words: str) -> None:
    """Write a healthy start, requests or prose of a size, and a failure."""
    text = CASES["cuda-ok-ncmoe24"].text
    start = text.index("\n", text.index("listening on http")) + 1
    begin, requests = (
        text[:start],
        text[start : text.index("update_slots: all slots", start + 2000)],
    )
    requests = requests[: requests.rindex("\n") + 1]
    with path.open("w", encoding="utf-8") as log:
        log.write(begin)
        written = 0
        number = 0
        while written < size:
            number += 1
            if words == "prose":
                # No two lines of the same shape: letters, not digits, count.
                letters = "".join(chr(97 + (number >> shift) % 26) for shift in range(0, 24, 3))
                written += log.write(f"0.50.448.783 I the model said {letters} and more\n" * 20)
            else:
                written += log.write(requests)
        log.write("0.50.448.784 E CUDA error: out of memory\n")
        log.write("0.50.448.784 E   current device: 0, in function alloc at ggml-cuda.cu:445\n")
