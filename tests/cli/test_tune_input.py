"""Wrong arguments, files and runtimes: a tune reports the fault and starts nothing."""

from __future__ import annotations

import json
import os
import signal

import pytest
from model_headers import MODELS
from runtime.sample_programs import write_program, write_script
from tune_machine import TuneMachine

from autofit.machine.lock import machine_lock
from autofit.model.synth.random_model import SynthSpec, write_model

SPEC = SynthSpec(layers=2, experts=4, used=2, embd=64, ff=32, vocab=512, type="f16")


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """A machine on which a tune would work."""
    return TuneMachine(tmp_path_factory.mktemp("input"), 2600.0)


@pytest.fixture
def refused(cli, machine, tmp_path):
    """Return a function that runs a tune that must not begin, and returns its error document."""

    def run(
        *more: object,
        code: int = 2,
        model: object = None,
        after: tuple[str, ...] = (),
        **changed: object,
    ) -> dict:
        before = machine.launches
        words = machine.words(tmp_path / "study", **changed)
        if model is not None:
            words[1] = str(model)
        done = cli(*words, *more, "--json", "--", *after)

        error = json.loads(done.out)["error"]
        assert done.code == code, done.err
        assert machine.launches == before
        assert not (tmp_path / "study").exists()
        assert f"autofit: {error['message']}\n" in done.err
        return error

    return run


def test_a_missing_model(refused, tmp_path):
    """A missing file is named."""
    error = refused(model=tmp_path / "none.gguf")

    assert "none.gguf: no such file" in error["message"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"hello, world", "is not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00", "ends inside its header"),
    ],
)
def test_a_file_that_is_no_model(refused, tmp_path, content, text):
    """A file that is no GGUF, or ends in its header, is reported with a hint."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    error = refused(model=path)

    assert text in error["message"]
    assert error["hint"]


def test_a_model_that_ends_early(refused, tmp_path):
    """An incomplete download is found before a launch."""
    path = tmp_path / "model.gguf"
    write_model(SPEC, path)
    os.truncate(path, path.stat().st_size - 5000)
    error = refused(model=path)

    assert "bytes" in error["message"]
    assert "download" in error["hint"]


def test_a_missing_shard(refused, tmp_path):
    """The missing file of a model in several files is named."""
    first = MODELS["qwen3moe"]().write(tmp_path / "big.gguf", shards=3)
    (tmp_path / "big-00002-of-00003.gguf").unlink()
    error = refused(model=first)

    assert "big-00002-of-00003.gguf" in error["message"]


def test_a_missing_runtime(refused, tmp_path):
    """The hint for a missing runtime lists those that were found."""
    error = refused(runtime=tmp_path / "nowhere")

    assert "no such runtime" in error["message"]
    assert "found on this machine" in error["hint"]


@pytest.mark.parametrize("dialect", [None, "llama_server"])
def test_a_program_that_is_no_runtime(refused, tmp_path, dialect):
    """Another program is no runtime, with or without --dialect."""
    program = write_script(tmp_path / "editor", "echo I edit texts")
    error = refused(runtime=program, dialect=dialect)

    assert "is not a runtime" in error["message"]


def test_a_runtime_for_another_processor(refused, tmp_path):
    """A build that ends with an illegal instruction is reported as such."""
    program = write_script(tmp_path / "llama-server", f"kill -{signal.SIGILL:d} $$")
    error = refused(runtime=program, dialect=None)

    assert "illegal instruction" in error["message"]
    assert "another CPU" in error["hint"]


def test_a_runtime_without_a_requested_flag(refused, tmp_path):
    """A pinned parameter that this build lacks is named, with those that it has."""
    program = write_program(tmp_path)
    write_script(
        tmp_path / "llama-server",
        f'case "$1" in --list-devices) echo "Available devices:";; '
        f'*) sh "{program}.all" "$@";; esac',
    )
    (tmp_path / "llama-server.all").write_text(f'cat "{tmp_path}/help.txt"\n')
    error = refused("--set", "moe_cache_mib=1024", runtime=program, dialect=None, space="cpu")

    assert "no such parameter" in error["message"]
    assert "n_cpu_moe" in error["hint"]


@pytest.mark.parametrize(
    ("option", "kind"), [("dialect", "dialect"), ("space", "space"), ("workload", "workload")]
)
def test_unknown_names_list_the_known(refused, option, kind):
    """The hint for an unknown name lists the known names and their folders."""
    error = refused(**{option: "nonesuch"})

    assert error["message"] == f"unknown {kind} 'nonesuch'"
    assert error["hint"].startswith("known:\n  ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--device", "CUDA7=100"], "no device CUDA7"),
        (["--device", "CUDA7"], "no device CUDA7"),
        (["--device", "CUDA0="], "must have the form NAME=MIB"),
        (["--budget", "30"], "has no unit"),
        (["--device", "CUDA0=much"], "not a possible size in MiB"),
        (["--device", "CUDA0=-1"], "not a possible size in MiB"),
        (["--device", "CUDA0=nan"], "not a possible size in MiB"),
        (["--set", "nonesuch=1"], "no such parameter"),
        (["--set", "ubatch"], "must have the form PARAM=VALUE"),
        (["--set", "ubatch=much"], "must be a whole number"),
        (["--set", "cache_type=q9_9"], "accepts f32, f16"),
        (["--set", "flash_attn=maybe"], "accepts on, off, auto"),
        (["--set", "context=1024"], "the task sets this"),
        (["--set", "parallel=2"], "the task sets this"),
        (["--kv-floor", "q3"], "is not a KV type"),
        (["--require", "tg>20"], "must be 'metric>=number'"),
        (["--require", "speed>=20"], "must be 'metric>=number'"),
        (["--objective", "speed"], "'speed' is not one of"),
        (["--budget", "soon"], "is not a duration"),
        (["--budget", "0s"], "is not a duration"),
        (["--max-launches", "0"], "not in the range"),
        (["--context", "0"], "not in the range"),
        (["--parallel", "0"], "not in the range"),
        (["--env", "GGML_X"], "must have the form NAME=VALUE"),
        (["--wrapper", "'nice"], "No closing quotation"),
        (["--baseline", "llama-server 'x"], "a quote is not closed"),
        (["--baseline", ""], "the preset must not be empty"),
        (["--baseline", "llama-server -ngl"], "a value is missing"),
        (["--baseline", "llama-server -m /other/name.gguf"], "serves /other/name.gguf"),
        (["--baseline", "no-such-preset.sh"], "no such preset"),
        (["--baseline", "llama-server --models-dir /models"], "starts a router"),
        (["--baseline", "X=1 llama-server", "--env", "X=2"], "sets X to another value"),
        (["--baseline", "numactl -N 0 llama-server", "--wrapper", "nice"], "`numactl -N 0`"),
        (["--baseline", "llama-server --rpc host:1", "--rpc", "host:2"], "has `host:1`"),
        (["--section", "big"], "--section needs --baseline"),
        (["--resume"], "is not a study"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_a_launch(refused, words, text):
    """The error names the option and the fault."""
    error = refused(*words)

    assert text in error["message"]
    assert error["kind"] == "usage"


@pytest.mark.parametrize(
    ("words", "text", "hint"),
    [
        (["--port", "9000"], "--port after `--`", "autofit chooses the port"),
        (["--host=0.0.0.0"], "--host after `--`", "autofit chooses the address"),
        (["-m", "other.gguf"], "--model after `--`", "the model is"),
        (["--rpc", "host:1"], "--rpc after `--`", "--rpc host:1"),
        (["-c", "4096"], "context after `--`", "use --context 4096"),
        (["-np", "4"], "parallel after `--`", "use --parallel 4"),
        (["--fit", "on"], "--fit after `--`", "autofit sets it in every launch"),
        (["-ub", "128"], "ubatch after `--`", "use --set ubatch=128"),
        (["-ngl", "3"], "n_gpu_layers after `--`", "use --set n_gpu_layers=3"),
        (["--threads", "2"], "threads after `--`", "--set threads=3"),
        (["--top-k"], "a value is missing", ""),
        (["--api-key", "sk-1"], "--api-key after `--`", "autofit must reach the server"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_that_autofit_sets_are_refused_after_the_dashes(refused, words, text, hint):
    """They would win over autofit's own and break every launch; the hint gives the alternative."""
    error = refused("--set", "threads=3", after=tuple(words))

    assert text in error["message"]
    assert hint in (error["hint"] or "")


def test_the_hint_for_a_device_without_size_has_an_example(refused):
    """The hint can be pasted."""
    assert refused("--device", "CUDA0=")["hint"] == "for example --device CUDA0=12288"


def test_a_machine_in_use_leaves_no_folder(cli, machine, tmp_path, monkeypatch):
    """A tune that must not begin ends with 4 and makes no study."""
    monkeypatch.chdir(tmp_path)
    with machine_lock("results/other"):
        done = cli(*machine.words(None))

    assert done.code == 4
    assert not (tmp_path / "results").exists()


def test_resume_needs_a_study(cli, machine):
    """--resume without --study is an error."""
    done = cli(*machine.words(None), "--resume")

    assert done.code == 2
    assert "--resume needs --study" in done.err


@pytest.mark.parametrize(
    "words", [["--objective", "tg"], ["--objective", "pareto"], ["--require", "tg>=20"]]
)
def test_generation_is_judged_only_if_requests_generate(refused, machine, tmp_path, words):
    """A workload of single tokens has no generation rate to improve or require."""
    path = tmp_path / "single.yaml"
    path.write_text(machine.workload.read_text().replace("33", "1"))

    error = refused(*words, workload=path)

    assert "tg" in error["message"]
    assert "predicted_tokens" in error["hint"]


def test_a_constraint_that_no_values_keep(refused, tmp_path):
    """A pinned value that breaks a constraint is reported with the constraint."""
    error = refused("--set", "ubatch=100000", space="moe")

    assert "ubatch <= batch" in error["message"]


def test_a_kv_floor_above_all_values(refused, tmp_path):
    """A floor above all values of the space ends with 3."""
    error = refused("--kv-floor", "f32", code=3)

    assert "no value of cache_type is left" in error["message"]


def test_a_folder_with_other_files_is_left_unchanged(cli, machine, tmp_path):
    """A study does not begin in a folder with other files."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "letter.txt").write_text("dear")
    done = cli(*machine.words(tmp_path / "study"))

    assert done.code == 2
    assert "is not empty and not a study" in done.err
    assert not (tmp_path / "study" / "study.json").exists()
    assert (tmp_path / "study" / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize("name", ["file", "file/study"])
def test_an_unwritable_study_folder(cli, machine, tmp_path, name):
    """A study's folder that cannot be made is named, with a hint."""
    (tmp_path / "file").write_text("")
    done = cli(*machine.words(tmp_path / name))

    assert done.code == 2
    assert str(tmp_path / name) in done.err
    assert "--study DIR" in done.err


def test_help_names_every_option(cli):
    """`tune --help` lists the documented options."""
    text = cli("tune", "--help").out

    for option in ("--runtime", "--device", "--rpc", "--set", "--env", "--wrapper", "--objective",
                   "--require", "--kv-floor", "--baseline", "--budget", "--max-launches",
                   "--study", "--resume", "--seed", "--dry-run", "--json", "--yes"):  # fmt: skip
        assert option in text
