"""`autofit import`: users' files and commands, parsed as baselines."""

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
# A part of the message for each file: the place, or the name of the fault.
BAD = {
    "another_script.sh": "/opt/start.sh",
    "argv_is_a_text.json": "`argv`",
    "binary.sh": "binary",
    "command_in_a_loop.sh": "line 1: `for`",
    "command_is_a_mapping.yaml": "mapping",
    "dashes_before_a_key.ini": "'--ctx-size'",
    "empty.sh": "empty",
    "here_document_of_a_shell.sh": "line 1: a here-document",
    "key_without_value.ini": "line 2: 'ctx-size'",
    "list.json": "list",
    "model.args": "model",
    "neither_models_nor_services.yaml": "neither `models`",
    "no_server.sh": "`make` in line 1",
    "nul_in_a_word.json": "NUL",
    "output_of_a_command.sh": "$(nproc)",
    "quote_not_closed.sh": "line 1: a quote",
    "several_sections.ini": "a (a.gguf), b (b.gguf)",
    "specifier.service": "%i in ExecStart",
    "starts_a_router.sh": "router",
    "two_servers.sh": "line 1 (a.gguf), line 2 (b.gguf)",
    "unknown_macro.yaml": "${server}",
    "value_by_condition.sh": "line 1: `if`",
    "value_missing.sh": "-ngl",
    "variable_of_elsewhere.service": "${MODEL}",
    "variable_of_elsewhere.yaml": "${MODEL}",
    "variable_without_value.sh": "line 1: $MODEL",
    "windows_path.sh": "Windows path",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return a cache of the runtime's answers for all tests of this module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _shared_cache(cli, cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def imported(cli):
    """Return a function that runs `autofit import ... --json` and returns the document."""

    def run(*words):
        ended = cli("import", *words, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    return run


@pytest.mark.parametrize("name", GOOD)
def test_a_users_file_is_parsed(imported, name):
    """Model, settings, variables, wrapper and other arguments are those of the file."""
    expected = dict(EXPECTED[name])
    section = ["--section", expected.pop("section")] if "section" in expected else []

    found = imported(DATA / "good" / name, *section)

    assert found["model_path"] == expected.pop("model")
    assert found["program"] == [expected.pop("program", "llama-server")]
    assert expected.pop("notice", "") in "\n".join(found["notices"])
    for key in ("params", "passed_through", "left_out", "env", "wrapper"):
        assert (key, found[key]) == (key, expected.pop(key, type(found[key])()))
    assert not expected
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize("suffix", [".json", ".sh"])
@pytest.mark.parametrize("name", GOOD)
def test_the_written_file_is_read_back_the_same(cli, imported, name, suffix, tmp_path):
    """The file that -o writes gives the same command."""
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
    """Each bad file has a message in the table."""
    assert {path.name for path in (DATA / "bad").iterdir()} == set(BAD)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(cli, name):
    """The error names the file, the place and the fault, and comes with a hint."""
    ended = cli("import", DATA / "bad" / name)

    assert ended.code == 2
    assert BAD[name] in ended.err
    assert name in ended.err
    assert "hint: " in ended.err or "missing" in ended.err


def test_the_summary_has_a_line_for_each_part(cli):
    """Model, settings and notices have lines, and the last line is the next command."""
    lines = cli("import", DATA / "good" / "nohup_sudo.args").out.splitlines()

    assert any(line.startswith("model ") and "/models/a.gguf" in line for line in lines)
    assert any(line.endswith("  load_mode=none threads=8") for line in lines)
    assert any("--api-key" in line for line in lines if line.startswith("notice: "))
    assert lines[-1].startswith("next: autofit tune /models/a.gguf --baseline ")


def test_the_written_file_is_the_next_baseline(cli, tmp_path):
    """The next command has the file that -o has written as its baseline."""
    path = tmp_path / "my own.sh"
    lines = cli("import", "llama-server -m /a.gguf", "-o", path).out.splitlines()

    assert lines[-1] == f"next: autofit tune /a.gguf --baseline '{path}'"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.sh",
            'export LLAMA_API_KEY=$(key)\nllama-server -m /a.gguf --port $P --api-key "$K"\n',
        ),
        ("a.sh", "bash -c 'llama-server -m /a.gguf --host=$(hostname -I)'\n"),
        (
            "a.service",
            "[Service]\nExecStart=/bin/llama-server -m /a.gguf --port ${P} --api-key %i\n",
        ),
        ("a.yaml", "models: {a: {cmd: 'llama-server -m /a.gguf --api-key ${key}'}}\n"),
        ("a.yaml", "services: {a: {image: llama, command: '-m /a.gguf --port $P'}}\n"),
    ],
)
def test_unknown_values_that_are_left_out_are_no_fault(imported, tmp_path, name, text):
    """An address or a key may come from elsewhere, because autofit uses neither."""
    path = tmp_path / name
    path.write_text(text)

    found = imported(path)

    assert found["model_path"] == "/a.gguf"
    assert found["left_out"]
    assert (found["params"], found["passed_through"]) == ({}, [])


def test_a_command_may_come_word_by_word(cli):
    """After `--` the command needs no quotes."""
    ended = cli("import", "--json", "--", "llama-server", "-m", "/a b.gguf", "-ngl", "3")

    assert json.loads(ended.out)["argv"] == [
        "llama-server",
        "--model",
        "/a b.gguf",
        "--n-gpu-layers",
        "3",
    ]


def test_overrides_keep_the_order_of_the_command(imported):
    """Overrides are joined where autofit's own order would change the first match."""
    found = imported("llama-server -m a.gguf -ncmoe 2 -ot 'blk\\.1\\.=CUDA0'")
    plain = imported("llama-server -m a.gguf -ncmoe 2 -ot 'blk\\.9\\.=CPU'")

    first, second = found["params"]["override_tensor"].split(",")
    assert first.startswith(r"blk\.(0|1)\.") and first.endswith("=CPU")  # noqa: PT018
    assert second == r"blk\.1\.=CUDA0"
    assert plain["params"] == {"n_cpu_moe": 2, "override_tensor": r"blk\.9\.=CPU"}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("missing.sh", "no such preset"),
        ("lama", "no such preset"),
        ("", "empty"),
        ("llama-server -m 'x", "a quote is not closed"),
    ],
)
def test_neither_file_nor_command_is_refused(cli, given, fault):
    """A misspelled file name is not read as a command."""
    ended = cli("import", given)

    assert ended.code == 2
    assert fault in ended.err


def test_folders_pipes_and_endless_files_are_refused_at_once(cli, tmp_path):
    """A pipe is not opened, and a large, long or deep file is not read."""
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
def test_secrets_are_removed_from_a_command_line(words, kept):
    """Values of secret flags and variables are replaced by stars."""
    assert redact_command(words) == tuple(kept)


def test_a_label_has_no_secret(cli, tmp_path):
    """The label of a command, and the written script, have no API key."""
    ended = cli("import", "llama-server --api-key sk-1 -m a.gguf", "-o", tmp_path / "mine.sh")

    assert "sk-1" not in ended.out + (tmp_path / "mine.sh").read_text()
    assert shlex.split((tmp_path / "mine.sh").read_text(), comments=True)[0] == "exec"
