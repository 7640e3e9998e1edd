"""Finding, reading and checking the YAML files that people write."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from autofit import yaml_files
from autofit.errors import UsageError

DATA = Path(__file__).parent / "data" / "definitions"
# The lines that the message about a bad file must name.
FAULTY_LINES = {
    "control_character": [1],
    "duplicate_key": [3],
    "empty": [1],
    "list_at_the_top": [1],
    "merged_from_an_anchor": [4, 6],
    "misspelt_key": [2],
    "missing_key": [1],
    "not_utf8": [1],
    "number_for_true": [2],
    "only_a_comment": [1],
    "tab_indentation": [3],
    "text_at_the_top": [1],
    "two_documents": [2],
    "unclosed_bracket": [3],
    "undefined_alias": [1],
    "word_for_a_number": [2],
    "wrong_type_deep_in_a_list": [5],
}


class Step(BaseModel):
    """A part of the sample."""

    model_config = ConfigDict(extra="forbid")

    size: int
    label: str | int


class SampleFile(BaseModel):
    """A file with every kind of value."""

    model_config = ConfigDict(extra="forbid")

    name: str
    mode: str = ""
    limit: float = 0.0
    strict: bool = False
    steps: list[Step] = Field(default_factory=list)
    extras: dict[str, object] = Field(default_factory=dict)


def _load(text: str, folder: Path) -> SampleFile:
    path = folder / "sample.yaml"
    path.write_text(text, encoding="utf-8")
    return yaml_files.load(path, SampleFile)


@pytest.mark.parametrize("path", sorted((DATA / "good").glob("*.yaml")), ids=lambda p: p.stem)
def test_good_files_are_read(path):
    """A correct file is read into its model."""
    assert yaml_files.load(path, SampleFile).name


@pytest.mark.parametrize("path", sorted((DATA / "bad").glob("*.yaml")), ids=lambda p: p.stem)
def test_bad_files_are_refused_with_file_and_line(path):
    """A faulty file is refused, and the message names the line of each fault."""
    with pytest.raises(UsageError) as caught:
        yaml_files.load(path, SampleFile)

    lines = caught.value.message.splitlines()
    expected = [f"{path}:{line}: " for line in FAULTY_LINES[path.stem]]
    if expected:
        assert [
            line[: len(start)] for line, start in zip(lines, expected, strict=True)
        ] == expected
    else:
        assert str(path) in lines[0]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "name: &a {<<: *a}\n",
        "name: &a {<<: [*a]}\n",
        "steps:\n  - &a\n    label: x\n    <<: *a\n",
        'name: !!bool "zz"\n',
    ],
)
def test_invalid_merges_and_tags_are_faults_of_the_file(text, tmp_path):
    """A mapping merged into itself, and a tag of another type, are faults with a line."""
    with pytest.raises(UsageError, match=r"sample\.yaml:\d+: "):
        _load(text, tmp_path)


def test_every_bad_file_has_expected_lines():
    """The table of lines and the folder have the same names."""
    assert {path.stem for path in (DATA / "bad").glob("*.yaml")} == set(FAULTY_LINES)


def test_all_faults_come_together(tmp_path):
    """One error names every fault, each with its own line and place."""
    with pytest.raises(UsageError) as caught:
        _load("nam: a\nlimit: fast\nsteps:\n  - size: 1\n", tmp_path)

    path = tmp_path / "sample.yaml"
    assert [line.split(": ")[:2] for line in caught.value.message.splitlines()] == [
        [f"{path}:1", "name"],
        [f"{path}:2", "limit"],
        [f"{path}:4", "steps.0.label"],
        [f"{path}:1", "nam"],
    ]
    assert "autofit check" in caught.value.hint


def test_unknown_and_missing_keys_are_named(tmp_path):
    """A misspelt key comes with the right one, at any depth; a missing key is named."""
    with pytest.raises(UsageError) as caught:
        _load("name: a\nlimt: 1\nzzz: 2\nsteps:\n  - size: 1\n    lable: x\n", tmp_path)

    faults = [line.split(": ", 1)[1] for line in caught.value.message.splitlines()]
    assert sorted(faults) == [
        "limt: unknown key; did you mean limit?",
        "steps.0.label: is missing",
        "steps.0.lable: unknown key; did you mean label?",
        "zzz: unknown key",
    ]


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "12:30", "1.2.3"])
def test_words_are_read_as_text(word, tmp_path):
    """In YAML 1.2 `on` is a text, as a runtime's flags need it."""
    assert _load(f"name: {word}\n", tmp_path).name == word


def test_values_are_plain_python(tmp_path):
    """The YAML reader's own types do not get into a candidate."""
    text = (
        "name: a\nextras: {a: &t true, b: *t, c: 1.50, d: 0x10, e: 010, f: 'x', g: null, h: [1]}\n"
    )

    extras = _load(text, tmp_path).extras

    assert extras == {
        "a": True,
        "b": True,
        "c": 1.5,
        "d": 16,
        "e": 10,
        "f": "x",
        "g": None,
        "h": [1],
    }
    assert [type(value) for value in extras.values()] == [
        bool,
        bool,
        float,
        int,
        int,
        str,
        type(None),
        list,
    ]


def test_keys_that_are_numbers_have_a_line(tmp_path):
    """A key that YAML reads as a number has its line like other keys."""
    with pytest.raises(UsageError, match=r":2: 7: "):
        _load("name: a\n7: b\n", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    """The error names a path that does not exist."""
    path = tmp_path / "gone.yaml"

    with pytest.raises(UsageError, match=r"gone\.yaml"):
        yaml_files.load(path, SampleFile)
    with pytest.raises(UsageError, match="no such space file"):
        yaml_files.find("space", str(path))


def test_an_explicit_path_is_not_searched(tmp_path):
    """A name with a slash or a suffix is a path."""
    path = tmp_path / "own.yaml"
    path.write_text("name: a\n", encoding="utf-8")

    assert yaml_files.find("space", str(path)) == path


def test_the_working_directory_comes_before_the_bundled_files(tmp_path, monkeypatch):
    """A file of the working directory hides the bundled one of the same name."""
    monkeypatch.chdir(tmp_path)
    bundled = yaml_files.find("space", "moe")
    own = tmp_path / "search_spaces" / "moe.yaml"
    own.parent.mkdir()
    own.write_text("name: own\n", encoding="utf-8")

    assert yaml_files.find("space", "moe") == own
    assert bundled == yaml_files.bundled_root() / "search_spaces" / "moe.yaml"


def test_the_users_folder_comes_between(tmp_path, monkeypatch):
    """A file of the user's configuration folder hides the bundled one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    users = tmp_path / "config" / "autofit" / "runners" / "mine.yaml"
    users.parent.mkdir(parents=True)
    users.write_text("name: mine\n", encoding="utf-8")

    assert yaml_files.find("dialect", "mine") == users
    assert yaml_files.available("dialect")["mine"] == users


def test_an_unknown_name_lists_the_known_names(tmp_path, monkeypatch):
    """The hint has the known names and their folders."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match="unknown space 'moo'") as caught:
        yaml_files.find("space", "moo")

    lines = caught.value.hint.splitlines()
    assert lines[0].startswith("did you mean moe?")
    assert ["moe", str(yaml_files.bundled_root() / "search_spaces")] in map(str.split, lines)


_NAMES = "abcdefghijklm"
_BOMBS = {
    "aliases": "a: &a [1]\n"
    + "".join(f"{b}: &{b} [{f'*{a},' * 10}]\n" for a, b in pairwise(_NAMES)),
    "aliases in merges": "a: &a {x: 1}\n"
    + "".join(f"{b}: &{b} {{<<: [{f'*{a},' * 10}]}}\n" for a, b in pairwise(_NAMES)),
    "an anchor in itself": "a: &a [*a]\n",
    "an anchor in itself below": "a: &a {b: {c: [*a]}}\n",
    "an anchor in itself, set before": "a: &a 1\nb: &a [*a]\n",
    "60,000 keys": "".join(f"key{i}: 1\n" for i in range(60_000)),
    "100,000 entries": "steps: [" + "1," * 100_000 + "]\n",
    "deep blocks": "".join(f"{' ' * i}a:\n" for i in range(1000)),
    "deep lists": "- " * 5000 + "x\n",
    "deep brackets": "a: " + "[" * 100_000,
    "deep braces": "a: " + "{a: " * 50_000,
    "deep keys": "? " * 60 + "x\n",
    "a list as a key": "? [a, b]\n: 1\n",
    "equal anchors": "".join(f"k{i}: &a {i}\n" for i in range(8000)) + "".join("- *a\n" * 9000),
    "2 MiB": "# " + "x" * (2 << 20),
}  # fmt: skip


@pytest.mark.parametrize("kind", _BOMBS)
def test_a_file_that_grows_when_it_is_read_is_refused(kind, tmp_path):
    """Aliases, depth and numbers of nodes have limits, so that no file takes long to read."""
    with pytest.raises(UsageError, match=r"sample\.yaml"):
        _load(_BOMBS[kind], tmp_path)


def test_many_faults_are_counted_and_few_are_shown(tmp_path):
    """A file of thousands of unknown keys gets the first faults and the number of the others."""
    with pytest.raises(UsageError) as caught:
        _load("".join(f"key{i}: 1\n" for i in range(4000)), tmp_path)
    lines = caught.value.message.splitlines()
    assert len(lines) < 50
    assert any(word.isdigit() and int(word) > 3900 for word in lines[-1].split())


def test_an_alias_repeats_what_it_names(tmp_path):
    """Aliases and merges of ordinary size are read as before."""
    path = tmp_path / "sample.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    data = yaml_files.read_yaml(path)
    assert dict(data["b"]) == {"x": 1, "y": 2}
    assert [dict(one) for one in data["c"]] == [{"x": 1}, {"x": 1}]
