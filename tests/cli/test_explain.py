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
    """The JSON document of a run that must end well."""
    done = explain("--json", *words, text=text)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found) == KEYS
    return found


def test_a_log_file_is_explained():
    """Kind, place, size, evidence and advice come as one document."""
    found = explained(str(FOLDER / "out_of_memory" / "cuda-oom-load.log"))

    assert found["kind"] == "out_of_memory"
    assert (found["where"], found["buffer"], found["stage"]) == ("device", "weights", "load")
    assert (found["device"], found["requested_mib"]) == ("CUDA0", 17833.71)
    assert "cudaMalloc failed: out of memory" in found["evidence"]
    assert found["advice"][0].startswith("raise n_cpu_moe by at least 15")
    assert found["reason"] is None


def test_stdin_is_explained():
    """A dash reads from a pipe."""
    found = explained("-", text=CASES["router-second-child-out-of-memory"].text)

    assert (found["kind"], found["device"]) == ("out_of_memory", "CUDA0")


@pytest.mark.parametrize("status", ["137", "-9", "SIGKILL"])
def test_an_exit_status_tells_of_an_end_without_a_word(status: str):
    """The same log is unknown without a status, and the host's memory with SIGKILL."""
    text = CASES["stopped-while-loading"].text

    found = explained("-", "--exit", status, text=text)

    assert (found["kind"], found["where"], found["reason"]) == ("out_of_memory", "host", "killed")


def test_people_get_a_short_answer():
    """The headline says it all; evidence and advice follow."""
    done = explain(str(FOLDER / "out_of_memory" / "cuda-oom-kv.log"))

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == (
        "out of memory while making the context: KV cache on CUDA0, 10240.0 MiB asked"
    )
    assert lines[1].startswith("  evidence  ggml_backend_cuda_buffer_type_alloc_buffer")
    assert lines[2].startswith("  try       ")
    assert "q8_0" in lines[2]


def test_what_is_taken_for_experts_is_told():
    """A cache by its device; a slot that was refused by its size, where nothing failed of it."""
    cached = explained("-", text=CASES["moe-cache-on"].text)
    shrunk = explain("-", text=CASES["cuda-prefetch-slots-shrunk"].text)

    assert cached["expert_cache_mib"] == {"CUDA0": 2048.0}
    assert shrunk.stdout.startswith("completed: no failure in this log")
    assert "144 MiB of a device were refused" in shrunk.stdout
    assert "fewer prefetch slots" in shrunk.stdout


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("cuda-ok-ncmoe24", "completed: no failure in this log"),
        (
            "stopped-while-loading",
            "unknown: the log ends while loading, without saying why",
        ),
        ("unknown-flag", "rejected before loading: unknown flag"),
        ("pinned-refused-fatally", "out of memory while loading: weights on pinned memory, "),
    ],
)
def test_headlines_are_plain(name: str, headline: str):
    """Every kind has a headline in plain words."""
    done = explain("-", text=CASES[name].text)

    assert done.stdout.startswith(headline)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such.log"], "cannot read no-such.log"),
        ([str(FOLDER)], "Is a directory"),
        (["-", "--exit", "later"], "not an exit status: later"),
        (["-", "--dialect", "nobody"], "unknown dialect 'nobody'"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(words: list[str], message: str):
    """A mistake ends with 2 and is told, as JSON too."""
    done = explain("--json", *words, text="")

    assert done.returncode == 2
    assert message in json.loads(done.stdout)["error"]["message"]
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", ["requests", "prose"])
def test_a_gigabyte_is_explained_in_bounded_memory(tmp_path: Path, words: str):
    """A log of 1 GB takes no more memory than one of 20 KB, and its last line still counts."""
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
    """A healthy start, requests or prose for so many bytes, and a death."""
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
