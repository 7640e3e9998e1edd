"""Dialect files: shipped, valid and faulty ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.yaml_files import bundled_root

FOLDER = Path(__file__).parent.parent / "data" / "dialects"
SHIPPED = sorted(path.stem for path in (bundled_root() / "runners").glob("*.yaml"))
SEARCHED = (
    *("devices", "n_gpu_layers", "tensor_split", "override_tensor", "n_cpu_moe", "n_cpu_ffn"),
    *("context", "parallel", "batch", "ubatch", "cache_type_k", "cache_type_v", "flash_attn"),
    *("load_mode", "threads", "threads_batch", "moe_cache_mib", "op_offload_min_batch"),
)


@pytest.mark.parametrize("path", sorted((FOLDER / "good").glob("*.yaml")), ids=lambda p: p.stem)
def test_valid_file_is_loaded(path: Path) -> None:
    """A valid file becomes a dialect with the name of the file."""
    dialect = load_dialect(str(path))
    assert (dialect.name, dialect.path) == (path.stem, path)


@pytest.mark.parametrize("path", sorted((FOLDER / "bad").glob("*.yaml")), ids=lambda p: p.stem)
def test_fault_is_reported_with_its_line(path: Path) -> None:
    """The fault that a file's first line announces is reported with its line (0: without one)."""
    announced = re.match(r"# fault: (\d+): (.*)", path.read_text())
    assert announced
    with pytest.raises(UsageError) as raised:
        load_dialect(str(path))
    faults = [line for line in raised.value.message.splitlines() if announced[2] in line]
    assert faults, raised.value.message
    if announced[1] != "0":
        assert f"{path}:{announced[1]}:" in faults[0]


def test_all_faults_of_a_file_are_reported() -> None:
    """A file with three faults is rejected with three lines."""
    with pytest.raises(UsageError) as raised:
        load_dialect(str(FOLDER / "bad" / "several_faults.yaml"))
    lines = [line.split(":")[1] for line in raised.value.message.splitlines()]
    assert lines == ["5", "6", "8"]


def test_every_shipped_dialect_is_loaded() -> None:
    """The documented dialects exist and have no fault."""
    documented = {
        "llama_server",
        "ik_llama_server",
        "llama_server_prefetch_env",
        "llama_server_prefetch_slots",
        "llama_server_prefetch_weights",
        "llama_server_moe_cache",
        "embedded",
    }
    assert documented <= set(SHIPPED)
    assert set(SHIPPED) <= set(load_all_dialects())


def test_llama_server_has_every_searched_parameter() -> None:
    """Every parameter that a search can vary has a spelling in llama-server's dialect."""
    assert set(SEARCHED) <= set(load_dialect("llama_server").parameters)
    slots = load_dialect("llama_server_prefetch_slots").parameters
    assert "prefetch_slots" in slots


def test_extending_file_adds_replaces_and_removes() -> None:
    """Keys are merged, lists replaced, nulls remove a key, refusals and failures come first."""
    parent = load_dialect("llama_server")
    fork = load_dialect(str(FOLDER / "good" / "extends_llama_server.yaml"))
    assert "split_experts" in fork.parameters
    assert "n_cpu_ffn" not in fork.parameters
    assert fork.parameters["tensor_split"].type == "list"
    assert fork.parameters["tensor_split"].spellings[0].join == ";"
    assert fork.launch.always == (("--fit", "off"), ("--strict",))
    assert fork.launch.measure == parent.launch.measure
    assert fork.estimator is None
    assert fork.memory_command == ("vendor-smi", "--plain")
    assert fork.refuse[0].because == "split experts live on devices"
    assert fork.refuse[1:] == parent.refuse
    assert fork.failures[0].has == ("no room for split experts",)
    assert fork.failures[1:] == parent.failures


def test_shipped_dialect_shows_every_key() -> None:
    """Each field of each section is a key, or is explained, in llama_server.yaml."""
    text = (bundled_root() / "runners" / "llama_server.yaml").read_text()
    dialect = load_dialect("llama_server")
    spelling = dialect.parameters["context"].spellings[0]
    sections = (
        dialect,
        dialect.program,
        dialect.detect,
        dialect.detect.all[0],
        dialect.ask,
        dialect.parameters["context"],
        spelling,
        dialect.launch,
        dialect.ready,
        dialect.endpoints,
        dialect.timings,
        dialect.estimator,
        dialect.refuse[0],
        dialect.preset,
        dialect.preset.ini,
    )
    keys = {name for section in sections for name in type(section).__slots__} - {"name", "path"}
    missing = [key for key in sorted(keys) if not re.search(rf"\b{key}:|`{key}\b", text)]
    assert missing == []


def test_changed_file_is_loaded_again(tmp_path: Path) -> None:
    """A dialect has the current content of its file."""
    path = tmp_path / "mine.yaml"
    text = "extends: llama_server\ndetect: {all: [{flag: --ctx-size}]}\ndescription: "
    path.write_text(text + "before")
    assert load_dialect(str(path)).description == "before"
    path.write_text(text + "afterwards")
    assert load_dialect(str(path)).description == "afterwards"


def test_unused_facts_of_older_files_are_accepted(tmp_path: Path) -> None:
    """Keys of log facts that have no effect any more are not reported as unknown."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "description: mine\nextends: llama_server\ndetect: {all: [{flag: --ctx-size}]}\n"
        "log: {facts: {prompt_timing: [{has: prompt eval time}], buffer: [{has: buffer size}]}}\n"
    )
    facts = load_dialect(str(path)).log.facts
    assert [pattern.has for pattern in facts.buffer] == [("buffer size",)]
    assert facts.refused == load_dialect("llama_server").log.facts.refused


def test_unknown_name_lists_the_known_ones() -> None:
    """The hint for an unknown name has the names of dialects."""
    with pytest.raises(UsageError) as raised:
        load_dialect("lama_server")
    assert "llama_server" in raised.value.hint
    assert "embedded" in raised.value.hint


def test_example_of_the_page_works(tmp_path: Path) -> None:
    """The example file on the page about dialects is a dialect with its parameter."""
    page = (bundled_root() / "docs" / "dialects.md").read_text()
    path = tmp_path / "my_server.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    dialect = load_dialect(str(path))
    assert dialect.parameters["stage_experts"].spellings[0].flag == "--stage-experts"
    assert "n_cpu_moe" in dialect.parameters
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == SHIPPED
