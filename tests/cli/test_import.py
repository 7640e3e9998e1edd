"""`autofit import`: foreign files as launch commands, and what comes of them as a baseline."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autofit.runtime.command.redaction import redact_command

DATA = Path(__file__).parents[1] / "data" / "imports"
EXPECTED = YAML(typ="safe", pure=True).load(DATA / "good" / "expected.yaml")
GOOD = sorted(path.name for path in (DATA / "good").iterdir() if path.name != "expected.yaml")
BAD = {
    "another_script.sh": "runs another script",
    "argv_is_a_text.json": "no list of words",
    "batch_file.bat": "scripts of Windows",
    "binary.sh": "is a binary file",
    "command_in_a_loop.sh": "line 1: `for` begins a loop",
    "command_is_a_mapping.yaml": "where a text should be",
    "dashes_before_a_key.ini": "no dashes before them",
    "empty.sh": "is empty",
    "here_document.sh": "line 1: a here-document",
    "key_without_value.ini": "line 2: 'ctx-size' is neither",
    "list.json": "not an object",
    "model.args": "is a model",
    "neither_models_nor_services.yaml": "has neither",
    "no_server.sh": "none is a llama-server: `make` in line 1",
    "nul_in_a_word.json": "a NUL",
    "output_of_a_command.sh": "$(nproc) takes a shell to know",
    "quote_not_closed.sh": "line 1: a quote is not closed",
    "several_sections.ini": "holds 2 servers: a (a.gguf), b (b.gguf)",
    "specifier.service": "%i in ExecStart is systemd's",
    "starts_a_router.sh": "starts a router",
    "two_servers.sh": "holds 2 servers: line 1 (a.gguf), line 2 (b.gguf)",
    "unknown_macro.yaml": "${server} is no macro",
    "value_by_condition.sh": "line 1: `if` decides what N is",
    "value_missing.sh": "-ngl: a value is missing",
    "variable_of_elsewhere.service": "${MODEL} has no value in this unit",
    "variable_of_elsewhere.yaml": "${MODEL} has no value in this file",
    "variable_without_value.sh": "line 1: $MODEL has no value here",
    "windows_path.sh": "a Windows path loses its backslashes",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What a runtime has answered, for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _asked_once(cli, cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def imported(cli):
    """Runs `autofit import ... --json`; the document."""

    def run(*words):
        ended = cli("import", *words, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    return run


@pytest.mark.parametrize("name", GOOD)
def test_a_foreign_file_is_understood(imported, name):
    """Model, settings, variables, wrapper and what goes through are what the file says."""
    wanted = dict(EXPECTED[name])
    section = ["--section", wanted.pop("section")] if "section" in wanted else []

    found = imported(DATA / "good" / name, *section)

    assert found["model_path"] == wanted.pop("model")
    assert found["program"] == [wanted.pop("program", "llama-server")]
    assert wanted.pop("notice", "") in "\n".join(found["notices"])
    for key in ("params", "passed_through", "left_out", "env", "wrapper"):
        assert (key, found[key]) == (key, wanted.pop(key, type(found[key])()))
    assert not wanted
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize("suffix", [".json", ".sh"])
@pytest.mark.parametrize("name", GOOD)
def test_what_is_written_reads_back_the_same(cli, imported, name, suffix, tmp_path):
    """The file of -o says the same command, so that a tune takes it in the other's place."""
    section = ["--section", EXPECTED[name]["section"]] if "section" in EXPECTED[name] else []
    written = tmp_path / f"mine{suffix}"
    assert cli("import", DATA / "good" / name, *section, "-o", written).code == 0

    first = imported(DATA / "good" / name, *section)
    again = imported(written)

    for key in ("model_path", "params", "passed_through", "env", "wrapper", "argv"):
        assert (key, again[key]) == (key, first[key])
    assert "secret" not in written.read_text()
    assert os.access(written, os.X_OK) == (suffix == ".sh")


def test_the_table_of_bad_files_is_whole():
    """Each bad file has its message here."""
    assert {path.name for path in (DATA / "bad").iterdir()} == set(BAD)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_by_its_fault(cli, name):
    """What is not understood is told with its line, and nothing is guessed."""
    ended = cli("import", DATA / "bad" / name)

    assert ended.code == 2
    assert BAD[name] in ended.err
    assert name in ended.err
    assert "hint: " in ended.err or "missing" in ended.err


def test_people_are_told_what_was_read_and_what_is_next(cli):
    """Every part has a line, and the last one is the command of a tune."""
    lines = cli("import", DATA / "good" / "nohup_sudo.args").out.splitlines()

    told = {line[:16].strip(): line[16:] for line in lines}
    assert told["model"] == "/models/a.gguf (not on this machine)"
    assert told["settings"] == "load_mode=none threads=8"
    assert any("never written down: --api-key" in line for line in lines)
    assert lines[-1].startswith("next: autofit tune /models/a.gguf --baseline ")


def test_what_was_written_is_the_next_baseline(cli, tmp_path):
    """The command of a tune names the file that -o has made, not the command again."""
    path = tmp_path / "my own.sh"
    lines = cli("import", "llama-server -m /a.gguf", "-o", path).out.splitlines()

    assert lines[-1] == f"next: autofit tune /a.gguf --baseline '{path}'"


def test_a_command_may_come_word_by_word(cli):
    """After `--` the words need no quotes."""
    ended = cli("import", "--json", "--", "llama-server", "-m", "/a b.gguf", "-ngl", "3")

    assert json.loads(ended.out)["argv"] == [
        "llama-server",
        "--model",
        "/a b.gguf",
        "--n-gpu-layers",
        "3",
    ]


def test_overrides_keep_the_order_of_the_command(imported):
    """The first pattern that matches wins: written the other way round it would be another."""
    found = imported("llama-server -m a.gguf -ncmoe 2 -ot 'blk\\.1\\.=CUDA0'")
    plain = imported("llama-server -m a.gguf -ncmoe 2 -ot 'blk\\.9\\.=CPU'")

    first, second = found["params"]["override_tensor"].split(",")
    assert first.startswith(r"blk\.(0|1)\.") and first.endswith("=CPU")  # noqa: PT018
    assert second == r"blk\.1\.=CUDA0"
    assert plain["params"] == {"n_cpu_moe": 2, "override_tensor": r"blk\.9\.=CPU"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("missing.sh", "no such preset"),
        ("lama", "no such preset"),
        ("", "an empty preset"),
        ("llama-server -m 'x", "a quote is not closed"),
    ],
)
def test_what_is_neither_file_nor_command_is_refused(cli, given, told):
    """A misspelt name is not taken for a program."""
    ended = cli("import", given)

    assert ended.code == 2
    assert told in ended.err


def test_folders_pipes_and_endless_files_are_refused_at_once(cli, tmp_path):
    """Nothing is waited for, and nothing large is read."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.sh").write_bytes(b"a" * (1 << 20))
    (tmp_path / "long.sh").write_bytes(b"a b\n" * 50_000)
    (tmp_path / "deep.yaml").write_bytes(b"models: " + b"[" * 100_000)

    for name in (".", "pipe", "large.sh", "long.sh", "deep.yaml"):
        ended = cli("import", tmp_path / name)

        assert (name, ended.code) == (name, 2)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--baseline", "srv --api-key sk-1 -c 8"], ["--baseline", "srv --api-key *** -c 8"]),
        (["--baseline", "A_TOKEN='x y' srv"], ["--baseline", "A_TOKEN=*** srv"]),
        (["--api-key=sk-1", "-hft", "hf_1"], ["--api-key=***", "-hft", "***"]),
        (["LLAMA_API_KEY=1 srv --hf-token=2"], ["LLAMA_API_KEY=*** srv --hf-token=***"]),
        (["--max-tokens 5", "-m a.gguf"], ["--max-tokens 5", "-m a.gguf"]),
    ],
)
def test_keys_do_not_stay_in_a_command_line(words, kept):
    """What a study keeps of its own command line has no key in it."""
    assert redact_command(words) == tuple(kept)


def test_a_label_has_no_key(cli, tmp_path):
    """A command on the command line is named without its key."""
    ended = cli("import", "llama-server --api-key sk-1 -m a.gguf", "-o", tmp_path / "mine.sh")

    assert "sk-1" not in ended.out + (tmp_path / "mine.sh").read_text()
    assert shlex.split((tmp_path / "mine.sh").read_text(), comments=True)[0] == "exec"
