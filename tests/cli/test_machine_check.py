"""`autofit check PRESET --against-machine`."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from tune_machine import TuneMachine

from autofit.model.sizes.inventory import read_inventory
from autofit.study.fingerprint import Environment, file_digest

PLACED = "-c 2048 -ngl 99 -ncmoe 12 --fit off -b 512 -ub 512"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A card with room for a model whose experts are all in system RAM."""
    return TuneMachine(tmp_path_factory.mktemp("machine"), 2600.0)


@pytest.fixture
def altered(tmp_path):
    """The same machine for one test, which changes it."""
    return TuneMachine(tmp_path, 2600.0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The cache of runtime questions, for all tests of this module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _shared_cache(cli, cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def checked(cli):
    """Return a function that runs the check and returns exit code and document."""

    def run(preset, *words):
        ended = cli("check", preset, "--against-machine", "--json", *words)
        assert ended.out, ended.err
        return ended.code, json.loads(ended.out)

    return run


def _check_value(machine) -> str:
    return Environment(
        cpu="x", cpu_count=1, memory_mib=1, devices=(), driver="", build="b",
        model_digest=file_digest(read_inventory(machine.model).files),
    ).check_value  # fmt: skip


def _preset(form, machine, folder):
    """Write a preset in a format, with a check value."""
    check = _check_value(machine)
    command = [str(machine.server), "-m", str(machine.model), *PLACED.split()]
    path = folder / f"mine.{form}"
    if form == "json":
        path.write_text(json.dumps({"argv": command, "env": {}, "check": check}))
    elif form == "sh":
        path.write_text(f"# check: {check}\nexec {' '.join(command)}\n")
    elif form == "ini":
        path.write_text(
            f"; check: {check}\n[mine]\nmodel = {machine.model}\nctx-size = 2048\n"
            "n-gpu-layers = 99\nn-cpu-moe = 12\nfit = off\nubatch-size = 512\n"
        )
    else:
        path.write_text(
            f"# check: {check}\nLLAMA_ARG_MODEL={machine.model}\nLLAMA_ARG_CTX_SIZE=2048\n"
            "LLAMA_ARG_N_GPU_LAYERS=99\nLLAMA_ARG_N_CPU_MOE=12\nLLAMA_ARG_FIT=off\n"
        )
    return path


def _runtime(preset, machine) -> list[str]:
    return ["--runtime", str(machine.server)] if preset.suffix in (".ini", ".env") else []


@pytest.mark.parametrize("form", ["json", "sh", "ini", "env"])
def test_a_preset_that_fits(checked, form, machine, tmp_path):
    """The exit code is 0, and the document has needed and free memory, in every format."""
    preset = _preset(form, machine, tmp_path)
    code, found = checked(preset, *_runtime(preset, machine))

    assert (code, found["reasons"]) == (0, [])
    (card, host) = found["devices"]
    assert card["name"] == "CUDA0"
    assert 100 < card["needed_mib"] < card["free_mib"] < 3200  # with a context
    assert host["fits"]
    assert any("another machine" in note for note in found["notes"])


@pytest.mark.parametrize("form", ["json", "ini"])
def test_measured_memory_replaces_the_prediction(checked, machine, tmp_path, form):
    """A preset fits or does not by the memory that its proof measured, in JSON and a heading."""
    preset = _preset(form, machine, tmp_path)
    runtime = _runtime(preset, machine)
    (predicted, _) = checked(preset, *runtime)[1]["devices"]
    plain = preset.read_text()

    found = {}
    for taken_mib in (predicted["free_mib"] - 5, predicted["free_mib"] + 192):
        if form == "json":
            memory = {"taken_mib": {"CUDA0": taken_mib, "host": 1.0}}
            preset.write_text(json.dumps({**json.loads(plain), **memory}))
        else:
            preset.write_text(
                f"; used at the peak: CUDA0 {int(taken_mib)} MiB, host 1 MiB\n{plain}"
            )
        code, document = checked(preset, *runtime)
        found[taken_mib] = (code, document["fits"], document["devices"][0]["source"])

    assert predicted["source"] == "predicted"
    assert [*found.values()] == [(0, True, "measured"), (5, False, "measured")]


@pytest.mark.parametrize("words", ["--device CUDA0,CUDA1", "--tensor-split 12,1"])
def test_a_missing_device(checked, machine, tmp_path, words):
    """A preset for two devices does not fit a machine that has one of them."""
    path = tmp_path / "mine.args"
    path.write_text(f"{machine.server} -m {machine.model} {PLACED} {words}\n")

    code, found = checked(path)

    assert (code, found["fits"]) == (5, False)
    assert [reason["kind"] for reason in found["reasons"]] == ["device"]


def test_a_missing_device_that_was_measured(checked, machine, tmp_path):
    """The recorded memory shows which devices a command uses that names none."""
    preset = _preset("json", machine, tmp_path)
    memory = {"taken_mib": {"CUDA0": 300.0, "CUDA1": 2100.0, "host": 90.0}}
    preset.write_text(json.dumps({**json.loads(preset.read_text()), **memory}))

    code, found = checked(preset)

    assert code == 5
    assert ["CUDA1" in reason["message"] for reason in found["reasons"]] == [True]


def test_memory_that_cannot_be_estimated_does_not_fit(checked, machine, tmp_path):
    """Neither measured nor predicted memory is a reason."""
    path = tmp_path / "mine.args"
    override = "-ot 'blk.*=CUDA7'"
    path.write_text(f"{machine.server} -m {machine.model} {PLACED} {override}\n")

    code, found = checked(path)

    assert (code, found["fits"]) == (5, False)
    assert [reason["kind"] for reason in found["reasons"]] == ["memory"]


def test_a_changed_context_is_predicted(checked, machine, tmp_path):
    """The measured memory does not apply to another context."""
    preset = _preset("json", machine, tmp_path)
    workload = {"name": "x", "context": 1024, "parallel": 1, "text": ""}
    workload["requests"] = [{"prompt_tokens": 9, "predicted_tokens": 9, "weight": 1.0}]
    memory = {"taken_mib": {"CUDA0": 9e6}, "workload": workload}
    preset.write_text(json.dumps({**json.loads(preset.read_text()), **memory}))

    code, found = checked(preset)

    assert (code, found["devices"][0]["source"]) == (0, "predicted")
    assert any("context 1024" in note for note in found["notes"])


def test_a_device_that_is_full(checked, altered, tmp_path):
    """The exit code is 5, with the device that is full."""
    preset = _preset("ini", altered, tmp_path)
    (device,) = altered.machine.devices
    altered.change(devices=(replace(device, other_mib=2500.0),))

    code, found = checked(preset, *_runtime(preset, altered))

    assert (code, found["fits"]) == (5, False)
    (reason,) = found["reasons"]
    assert reason["kind"] == "memory"
    assert reason["message"].startswith("CUDA0 has ")
    assert reason["hint"]


@pytest.mark.parametrize("what", ["longer", "other weights"])
def test_a_model_that_was_replaced(what, checked, altered, tmp_path):
    """Other weights are found by the digest, also with the same header and size."""
    preset = _preset("sh", altered, tmp_path)
    with altered.model.open("r+b") as file:
        file.seek(0 if what == "longer" else -1, os.SEEK_END)
        file.write(b"\x2a")

    code, found = checked(preset, *_runtime(preset, altered))

    assert code == 5
    assert [reason["kind"] for reason in found["reasons"]] == ["model"]


def test_all_reasons_are_listed_together(checked, machine, tmp_path):
    """A missing model, an unknown and a removed flag, and an unknown variable are reasons."""
    path = tmp_path / "mine.sh"
    path.write_text(
        f"LLAMA_ARG_N_CPU_MEO=3 {machine.server} -m gone.gguf --n-cpu-meo 3 --draft 4 -c 2048\n"
    )

    code, found = checked(path)

    assert code == 5
    hints = {reason["message"]: reason["hint"] for reason in found["reasons"]}
    assert "did you mean --n-cpu-moe?" in hints["this build does not know --n-cpu-meo"]
    assert "this build does not know the variable LLAMA_ARG_N_CPU_MEO" in hints
    assert any("--draft" in message for message in hints)
    assert any("gone.gguf" in message for message in hints)


def test_a_missing_runtime(checked, machine, tmp_path):
    """A missing program is a reason; --runtime names another one."""
    path = tmp_path / "mine.args"
    path.write_text(f"/gone/llama-server -m {machine.model} {PLACED}\n")

    code, found = checked(path)
    assert code == 5
    assert [reason["kind"] for reason in found["reasons"]] == ["runtime"]

    code, found = checked(path, "--runtime", machine.server)
    assert (code, found["reasons"]) == (0, [])


def test_a_command_without_a_placement_fits(checked, machine, tmp_path):
    """llama.cpp's own fit uses the memory that is free."""
    path = tmp_path / "mine.args"
    path.write_text(f"{machine.server} -m {machine.model}\n")

    code, found = checked(path)

    assert (code, found["reasons"]) == (0, [])
    assert any("places layers" in note for note in found["notes"])


@pytest.mark.parametrize("more", ["-ngl all -cmoe", "-ngl 99 --cpu-moe", "-ngl 13 -ncmoe 12"])
def test_flags_for_all_layers_count_as_all(checked, machine, tmp_path, more):
    """All layers on the device and all experts in RAM, in every spelling."""
    path = tmp_path / "mine.args"
    path.write_text(f"{machine.server} -m {machine.model} -c 2048 -ub 512 --fit off {more}\n")

    code, found = checked(path)

    assert (code, found["reasons"]) == (0, [])
    assert found["devices"][0]["needed_mib"] < 1500


def test_the_text_has_verdict_and_reasons(cli, machine, tmp_path):
    """Without --json, stdout has the verdict, and stderr each reason with its hint."""
    path = tmp_path / "mine.args"
    path.write_text(f"{machine.server} -m {machine.model} {PLACED} --bogus\n")

    ended = cli("check", path, "--against-machine")

    assert ended.code == 5
    assert f"{path}: does not fit now" in ended.out.splitlines()
    assert "autofit: this build does not know --bogus" in ended.err.splitlines()
    assert "hint: " in ended.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "b", "--against-machine"], "checks only one preset"),
        (["a.yaml", "--json"], "need --against-machine"),
        (["missing.ini", "--against-machine"], "no such preset"),
    ],
)
def test_wrong_arguments_are_refused(cli, words, text):
    """Contradictory options and missing files are refused."""
    ended = cli("check", *words)

    assert ended.code == 2
    assert text in ended.err


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("n_cpu_moe = 12", "n-cpu-moe"),
        ("[other]\nctx_size = 1", "ctx-size"),
        ("[other]\nx = 1", ""),
    ],
)
def test_a_key_that_the_router_refuses_is_a_reason(checked, machine, tmp_path, line, right):
    """The router accepts no underscores, and refuses the file for a key of any section."""
    preset = _preset("ini", machine, tmp_path)
    preset.write_text(f"{preset.read_text()}{line}\n")

    code, found = checked(preset, "--section", "mine", *_runtime(preset, machine))

    assert code == 5
    assert [reason["kind"] for reason in found["reasons"]] == ["flag"]
    assert right in found["reasons"][0]["hint"]
