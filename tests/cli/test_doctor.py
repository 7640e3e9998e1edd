"""`autofit doctor`: its output, also on unusual machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_llama_cpp import free_port, rpc_device
from runtime.sample_programs import VERSION, write_program, write_script

from autofit.machine.lock import machine_lock

DEVICES = "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3060 (12044 MiB, 11873 MiB free)"


def _program(folder: Path, devices: str = DEVICES) -> Path:
    """A llama-server with a real help text that lists devices."""
    program = write_program(folder)
    help_path = folder / "help.txt"
    return write_script(
        program,
        f'case "$1" in --help) cat "{help_path}";; --version) echo "{VERSION}";;\n'
        f"--list-devices) cat <<END\n{devices}\nEND\n;; *) exit 1;; esac",
    )


def _kinds(document: dict) -> set[str]:
    return {finding["kind"] for finding in document["findings"]}


def test_runtime_and_devices_are_shown(cli, tmp_path):
    """Dialect, build, parameters, devices and the verdict are on stdout."""
    done = cli("doctor", "--runtime", _program(tmp_path / "bin"))

    assert done.code == 0
    for part in (
        "llama_server 0.6.0 b11434",
        "n_cpu_moe",
        "q8_0",
        "CUDA0: NVIDIA GeForce RTX 3060, 11.6 GiB free of 11.8 GiB",
        "cmake --build build --target llama-fit-params",
        "a tune would work here",
    ):
        assert part in done.out
    assert done.err == ""
    assert "\\u001b" not in done.out  # headings are styled, and not escaped like foreign text


def test_document_for_programs(cli, tmp_path):
    """--json prints the same as one document."""
    document = json.loads(cli("doctor", "--runtime", _program(tmp_path / "bin"), "--json").out)

    assert document["would_work"] is True
    (runtime,) = document["runtimes"]
    assert (runtime["dialect"], runtime["build"]) == ("llama_server", 11434)
    assert {"n_cpu_moe", "override_tensor"} < set(runtime["parameters"])
    assert [device["name"] for device in document["devices"]] == ["CUDA0"]
    assert document["host"]["cores"]["logical"] >= 1
    assert "no_estimator" in _kinds(document)
    assert all(finding["mend"] for finding in document["findings"])  # wording: quote


def test_everything_on_the_machine_is_found(cli, tmp_path, monkeypatch):
    """Without --runtime the first runtime is the one on PATH, and the others are listed."""
    program = _program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    document = json.loads(cli("doctor", "--json").out)

    assert document["runtimes"][0]["program"] == str(program)
    assert "embedded" in [runtime.get("dialect") for runtime in document["runtimes"]]


@pytest.mark.parametrize(
    ("script", "kind", "part"),
    [
        ("kill -ILL $$", "runtime_fails", "illegal instruction"),
        ("exit 3", "runtime_fails", "ends with status 3"),
        (None, "runtime_fails", "no such runtime"),
    ],
)
def test_runtime_that_does_not_start_ends_with_3(cli, tmp_path, script, kind, part):
    """A program that is no runtime, crashes or does not exist is a fatal finding."""
    program = tmp_path / "llama-server"
    if script:
        write_script(program, script)
    done = cli("doctor", "--runtime", program, "--json")

    assert done.code == 3
    document = json.loads(done.out)
    assert document["would_work"] is False
    assert part in document["runtimes"][0]["fault"]
    assert document["findings"][0]["kind"] == kind
    text = cli("doctor", "--runtime", program)
    assert (text.code, "a tune would NOT work here" in text.out) == (3, True)


def test_broken_runtime_on_path_counts_although_others_work(cli, tmp_path, monkeypatch):
    """A tune would use the broken llama-server on PATH, so the exit code is 3."""
    write_script(tmp_path / "bin" / "llama-server", "exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    done = cli("doctor", "--json")

    assert done.code == 3
    assert "embedded" in [runtime.get("dialect") for runtime in json.loads(done.out)["runtimes"]]


def test_devices_that_cannot_be_listed_end_with_3(cli, tmp_path):
    """A runtime that fails to list its devices cannot be tuned."""
    program = write_program(tmp_path / "bin")  # answers --help and --version only
    done = cli("doctor", "--runtime", program, "--json")

    assert done.code == 3
    assert "devices_fail" in _kinds(json.loads(done.out))


def test_devices_are_not_listed_while_another_autofit_measures(cli, tmp_path):
    """Listing opens every device, which would disturb a running tune."""
    program = _program(tmp_path / "bin")
    with machine_lock("results/other"):
        done = cli("doctor", "--runtime", program, "--json")
    document = json.loads(done.out)

    assert done.code == 0
    assert document["devices"] is None
    assert "machine_in_use" in _kinds(document)


def test_faulty_dialect_is_reported_with_its_line(cli, tmp_path, monkeypatch):
    """A faulty dialect file of the user is a fatal finding."""
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "mine.yaml").write_text("description: x\nlunch: {}\n")
    monkeypatch.chdir(tmp_path)
    done = cli("doctor")

    assert done.code == 3
    assert "mine.yaml:2: lunch" in done.out


def test_terminal_codes_in_device_names_are_removed(cli, tmp_path):
    """A device's name cannot colour or clear the terminal."""
    devices = DEVICES.replace("NVIDIA", "\x1b[2J\x07NVIDIA")
    done = cli("doctor", "--runtime", _program(tmp_path / "bin", devices))

    assert "NVIDIA GeForce" in done.out
    assert "\x1b[2J" not in done.out


@pytest.mark.parametrize("kept", [(), ("PATH", "HOME")], ids=["nothing", "unwritable"])
def test_doctor_works_in_a_bare_environment(tmp_path, kept):
    """Without HOME and PATH, and with unwritable folders, the doctor still answers."""
    odd = {
        "HOME": "/nowhere/at/all",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "XDG_DATA_HOME": "/dev/null/data",
        "XDG_CONFIG_HOME": "/dev/null/config",
    }
    env = {name: os.environ.get(name, "") for name in kept} | (odd if "HOME" in kept else {})
    done = subprocess.run(
        [sys.executable, "-m", "autofit", "doctor", "--json"],
        env={**env, "AUTOFIT_LOCK_DIR": str(tmp_path / "lock")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["would_work"] else 3)
    assert document["runtimes"]
    assert ("cache_not_writable" in _kinds(document)) == ("HOME" in kept)


def test_doctor_works_in_a_removed_working_directory(tmp_path):
    """A removed working directory is no failure."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); from autofit.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--json"],
        cwd=gone,
        env={**os.environ, "AUTOFIT_LOCK_DIR": str(tmp_path / "lock")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.stderr == ""
    assert json.loads(done.stdout)["runtimes"]


@pytest.mark.runtime
def test_the_real_runtime_with_a_remote_device(cli, llama_cpp):
    """The real llama-server lists an RPC server as a device; a missing one is a finding."""
    with rpc_device(llama_cpp) as endpoint:
        done = cli("doctor", "--runtime", llama_cpp, "--rpc", endpoint, "--json")
    document = json.loads(done.out)

    assert done.code == 0
    assert [device["name"] for device in document["devices"]] == ["RPC0"]
    assert document["runtimes"][0]["companions"].keys() >= {"fit_params"}
    gone = cli("doctor", "--runtime", llama_cpp, "--rpc", f"127.0.0.1:{free_port()}", "--json")
    assert gone.code == 3
    assert "devices_fail" in _kinds(json.loads(gone.out))
