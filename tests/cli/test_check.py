"""`autofit check`: the kind of every file, and every fault with file and line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from autofit.search.space_file import AxisFile, RequestFile, SpaceFile, WorkloadFile

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
KINDS = {
    "search_spaces": "search space",
    "workloads": "workload",
    "runners": "dialect",
    "suites": "suite",
}
SHIPPED = sorted([*ROOT.glob("search_spaces/**/*.yaml"), *ROOT.glob("runners/*.yaml")])
BAD = sorted([*DATA.glob("*/bad/*.yaml")])
SPACE = """\
layouts: [balanced, nowhere]
parameters:
  ubatch:
    values: [512]
  threads: {values: []}
constraints:
  - ubatch <= batch
  - threads
"""
NAMES = """\
parameters:
  ubtach:
    values: [512]
  cache_type:
    sets: [cache_type_k, cache_type_w]
    values: [f16]
  threads:
    values: [cores, cores * 2]
"""
VALUES = """\
parameters:
  ubatch:
    values: [512, 0]
  threads: {values: [-1, cores, 2.5, true]}
  cache_type:
    sets: [cache_type_k, cache_type_v]
    values: [f16]
  n_cpu_moe:
    values: [0, 5000000000]
"""
WORKLOAD = """\
context: 100
requests:
  - {prompt_tokens: 50, predicted_tokens: 10}
  - {prompt_tokens: 95, predicted_tokens: 10}
  - {prompt_tokens: -5, predicted_tokens: 10, wait: 3}
"""


def _faults(err: str, path: Path) -> list[int]:
    """Return the lines of a file that a message names."""
    return [
        int(n)
        for n in re.findall(rf"^(?:autofit: )?{re.escape(str(path))}:(\d+): ", err, re.MULTILINE)
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_shipped_files_are_good(cli, path):
    """Every shipped file is good, and of the kind of its folder."""
    done = cli("check", path)

    assert (done.code, done.err) == (0, "")
    assert done.out == f"{path}: a good {KINDS[path.parent.name]}\n"


def test_examples_of_the_page_are_good(cli, tmp_path):
    """The examples in docs/search-spaces.md are good spaces and workloads."""
    page = (ROOT / "docs" / "search-spaces.md").read_text(encoding="utf-8")
    paths = []
    for index, text in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)):
        paths.append(tmp_path / f"{index}.yaml")
        paths[-1].write_text(text)
    done = cli("check", *paths)

    assert done.err == ""
    kinds = [line.split(": a good ")[1] for line in done.out.splitlines()]
    assert len(kinds) == len(paths)
    assert set(kinds) == {"search space", "workload"}


def test_page_and_first_example_name_every_option():
    """Every key of the two kinds of file is in the page and in the example that explains it."""
    folder = ROOT / "search_spaces"
    page = (ROOT / "docs" / "search-spaces.md").read_text(encoding="utf-8")
    for example, models in (
        ("moe.yaml", (SpaceFile, AxisFile)),
        ("workloads/chat.yaml", (WorkloadFile, RequestFile)),
    ):
        text = (folder / example).read_text(encoding="utf-8")
        for key in (key for model in models for key in model.model_fields):
            assert re.search(rf"\b{key}\b", page), key
            assert re.search(rf"\b{key}:", text), (example, key)


@pytest.mark.parametrize("path", BAD, ids=lambda p: f"{p.parents[1].name}/{p.stem}")
def test_bad_files_are_refused_with_file_and_line(cli, path):
    """Each line of the message names the file and a line."""
    done = cli("check", path)

    assert done.code == 2
    assert done.out.startswith(f"{path}: a faulty ")
    *faults, hint = done.err.splitlines()
    assert len(_faults("\n".join(faults), path)) == len(faults) > 0
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("path", sorted(DATA.glob("dialects/*/*.yaml")), ids=lambda p: p.stem)
def test_dialects_are_recognized(cli, path):
    """A mapping with a dialect's keys is a dialect, good or bad, in any folder."""
    printed = cli("check", path).out

    unreadable = path.stem in ("not_a_mapping", "yaml_syntax")
    assert printed.endswith("file\n" if unreadable else "dialect\n")


@pytest.mark.parametrize(
    ("text", "kind", "lines"),
    [
        (SPACE, "search space", [1, 5, 8]),
        (SPACE.replace("[]", "[1]"), "search space", [1, 7, 8]),
        (NAMES, "search space", [2, 4, 8]),
        (VALUES, "search space", [3, 4, 4, 4, 9]),
        (WORKLOAD, "workload", [4, 5, 5]),
        ("context: 4096\nrequest: []\n", "workload", [1, 2]),
        ("context: 64\nrequests: [{prompt_tokens: 8, predicted_tokens: 8}]\ntext: no.txt\n",
         "workload", [3]),
        ("suits: any\nparameter:\n  ubatch: {values: [1]}\n", "search space", [2]),
        ("constraints:\n  - 'ubatch <= 5'\n", "search space", [2]),
        ("colour: red\n", "file", [1]),
        ("a: &a [*a]\n", "file", [1]),
    ],
)  # fmt: skip
def test_every_fault_of_a_file_comes_at_once(cli, tmp_path, text, kind, lines):
    """All faults are reported together, each with its own line, and the file's kind."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    done = cli("check", path)

    assert done.code == 2
    assert done.out == f"{path}: a faulty {kind}\n"
    assert sorted(_faults(done.err, path)) == lines


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n# nothing\n", b"\x7fELF\x02\x01\x01\x00", b"a: \x00\n",
     b"GGUF" + bytes(range(256)),
     b"[" * 1000, b"\xef\xbb\xbf", b"---\na: 1\n---\nb: 2\n", b"x" * (2 << 20)],
    ids=["empty", "comment", "program", "nul", "model", "deep", "mark", "two", "large"],
)  # fmt: skip
def test_a_file_without_yaml_is_refused(cli, tmp_path, content):
    """Empty, binary, endless and huge files are each one fault with a line."""
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    done = cli("check", path)

    assert done.code == 2
    assert len(_faults(done.err, path)) == 1


def test_folders_missing_files_loops_and_devices_are_refused(cli, tmp_path):
    """Each unreadable path is one fault, and the other files are checked."""
    loop = tmp_path / "loop.yaml"
    loop.symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    paths = [tmp_path, tmp_path / "missing.yaml", loop, tmp_path / "pipe.yaml", Path("/dev/zero")]
    done = cli("check", *paths, ROOT / "search_spaces" / "moe.yaml")

    assert done.code == 2
    assert [_faults(done.err, path) for path in paths] == [[1]] * len(paths)
    assert "moe.yaml: a good search space" in done.out


def test_faults_of_a_parent_name_its_own_file(cli, tmp_path, monkeypatch):
    """A dialect that extends a faulty one names the faulty line of the other file."""
    runners = tmp_path / "runners"
    runners.mkdir()
    (runners / "parent.yaml").write_text("description: x\nlunch: {}\n")
    child = runners / "child.yaml"
    child.write_text("description: y\nextends: parent\n")
    monkeypatch.chdir(tmp_path)
    done = cli("check", child)

    assert done.code == 2
    assert _faults(done.err, runners / "parent.yaml")


def test_a_preset_without_the_machine_is_refused(cli, tmp_path):
    """The hint has the command that checks a preset."""
    path = tmp_path / "mine.ini"
    path.write_text("[mine]\nmodel = x.gguf\n")

    ended = cli("check", path)

    assert (ended.code, ended.out) == (2, "")
    assert f"autofit check {path} --against-machine" in ended.err
