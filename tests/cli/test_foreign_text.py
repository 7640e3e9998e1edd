"""Texts of others: names, logs, studies and presets have no effect on a terminal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "h200-12gb-chat"
# A cleared screen, a title, a forged line, reordered text, and 8-bit and lone codes.
HOSTILE = "a\x1b[2J\x1b]0;t\x07\r\nautofit: forged\x08\u202eb\x9b1m\x85\u2028\x00z"
COMMANDS = (
    ("show", "STUDY"),
    ("show", "STUDY", "--json"),
    ("show", "STUDY", "--command", "1"),
    ("report", "STUDY"),
    ("report", "STUDY", "--html", "-"),
    ("studies",),
)


def _assert_harmless(ended, *, may_break_lines: bool = False) -> None:
    assert "fault in autofit itself" not in ended.err
    for text in (ended.out, ended.err):
        bad = {c for c in text if c != "\n" and not c.isprintable()} - {"\u200b", "\t"}
        assert not bad
        assert may_break_lines or not any(
            line.startswith("autofit: forged") for line in text.splitlines()
        )


def _changed(data: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data with every text in free form changed."""
    if isinstance(data, dict):
        return {
            key: value if key in ("phase", "role", "kind", "fidelity") else _changed(value, change)
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [_changed(one, change) for one in data]
    return change(data) if isinstance(data, str) else data


@pytest.fixture
def study(tmp_path, monkeypatch) -> Path:
    """A study whose texts are all hostile."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "study"
    shutil.copytree(REFERENCE, folder)
    for path in [folder / "study.json", *folder.glob("trials/*.json")]:
        data = json.loads(path.read_text())
        path.write_text(json.dumps(_changed(data, lambda text: text + HOSTILE)))
    return folder


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_study_cannot_control_the_terminal(words, study, cli):
    """Whatever its texts contain, no control character is printed."""
    ended = cli(*(str(study) if word == "STUDY" else word for word in words))

    assert ended.code == 0
    # A command that can be pasted, and HTML, keep the line breaks in their texts.
    _assert_harmless(ended, may_break_lines="--command" in words or "--html" in words)


_REFUSED = "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9.00 MiB on device 0"


@pytest.mark.parametrize(
    "line",
    [
        f"{_REFUSED}: cudaMalloc failed: out of memory {HOSTILE}",
        f"error: invalid argument: {HOSTILE}",
        f"main: {HOSTILE}",
    ],
)
def test_a_log_cannot_control_the_terminal(line, cli, tmp_path):
    """The evidence of a diagnosis is printed without control characters."""
    path = tmp_path / "server.log"
    path.write_text(line, encoding="utf-8", errors="replace")
    for words in (["explain", path], ["explain", path, "--json"]):
        ended = cli(*words)
        assert ended.code == 0
        _assert_harmless(ended)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", f'"k{HOSTILE}": 1\n'),
        ("a.sh", f"llama-server -m m.gguf --alias '{HOSTILE}' --ctx-size 5 --wrong '{HOSTILE}'\n"),
        ("a.ini", f"[m{HOSTILE}]\nmodel = m.gguf\nc = {HOSTILE}\n"),
        ("a.json", json.dumps({"argv": ["llama-server", "-m", HOSTILE], "env": {"A": HOSTILE}})),
        ("a.env", f"LLAMA_ARG_MODEL={HOSTILE}\n"),
    ],
)
def test_a_file_cannot_control_the_terminal(name, text, cli, tmp_path):
    """Keys and values of files are printed without control characters."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", errors="replace")
    for words in (["check", path], ["import", path], ["compare", path, path], ["export", path]):
        _assert_harmless(cli(*words))
