"""The comment lines at the top of a preset."""

from __future__ import annotations

from dataclasses import replace

import pytest
from presets.preset_sample import make_preset, write_file

from autofit.presets.formats.registry import write_preset
from autofit.presets.read_preset import read_preset
from autofit.text_format import speedup_text

HEADED = ("ini", "llama-swap", "shell", "systemd", "compose", "env")


@pytest.mark.parametrize("name", HEADED)
def test_the_heading_has_task_result_and_machine(name):
    """It has workload, gain, headroom, machine, build, date and check value."""
    text = write_preset(name, make_preset())

    for part in (
        "chat: context 8192, parallel 1",
        speedup_text(make_preset().gain, tie=False),
        "CUDA0 900 MiB, host unknown",
        "AMD Ryzen 9 7950X",
        "NVIDIA GeForce RTX 3060",
        "11434 (abc123)",
        "2026-11-29",
        "autofit 0.1.0",
        make_preset().environment.check_value,
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"gain": None}, "gain: unknown"),
        ({"proven": False}, "NOT proven"),
        ({"free_mib": {}}, "headroom: unknown"),
    ],
)
def test_the_heading_marks_what_is_unknown_or_unproven(changes, text):
    """Unknown gain, unknown headroom and missing proof are said to be so."""
    assert text in write_preset("ini", make_preset(**changes))


@pytest.mark.parametrize("name", HEADED)
@pytest.mark.parametrize("breaker", ["\n", "\r", "\x0b", "\u2028", "\x1b[31m"])
def test_a_model_name_cannot_leave_the_heading(name, breaker):
    """A name with line breaks or terminal codes stays within its comment line."""
    text = write_preset(name, make_preset(model_name=f"a{breaker}rm -rf x"))

    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("rm")]


@pytest.mark.parametrize("format_name", ["json", "ini", "shell", "env", "systemd", "compose"])
def test_a_preset_has_its_workload(format_name, tmp_path):
    """The workload is read back from JSON and from every format with a heading."""
    workload = make_preset().workload

    found = read_preset(str(write_file(format_name, tmp_path))).workload

    # A heading does not name the text that prompts are cut from.
    assert found == (workload if format_name == "json" else replace(workload, text=""))


@pytest.mark.parametrize("format_name", ["json", *HEADED])
def test_a_preset_has_its_measured_memory(format_name, tmp_path):
    """The memory of the server is read back from every format."""
    changed = make_preset(taken_mib={"CUDA0": 9100.0, "RPC0": None, "host": 3999.2})
    metadata = read_preset(str(write_file(format_name, tmp_path, changed))).metadata

    known = {name: mib for name, mib in metadata["taken_mib"].items() if mib is not None}
    assert known == {"CUDA0": 9100.0, "host": 3999.2 if format_name == "json" else 4000.0}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# tuned for: speed",
        "# tuned for: x: context 0, parallel 1, prompt+generated tokens 1+1 (weight 1); judged by",
        "# tuned for: x: context 9, parallel 1, prompt+generated tokens many; judged by tg",
    ],
)
def test_another_comment_has_no_workload(line, tmp_path):
    """A comment that autofit did not write, or a damaged one, gives no workload."""
    path = tmp_path / "run.args"
    path.write_text(f"{line}\nllama-server -m a.gguf\n")

    assert read_preset(str(path)).workload is None
