"""Presets read back into launch commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from presets.preset_sample import ARGUMENTS, SMALL_HELP, facts

from autofit.errors import UsageError
from autofit.presets.formats.registry import SUFFIXES, write_preset
from autofit.presets.option import parse_options
from autofit.presets.read_preset import read_preset

SPECIAL = facts(
    arguments=(*ARGUMENTS, "--no-warmup", "--override-tensor", r"blk\.1\.ffn=CPU"),
    env={"CUDA_SCALE_LAUNCH_QUEUES": "4x", "NOTE": "two words"},
    wrapper=("numactl", "-N", "0"),
)


def _written(format_name: str, folder: Path, preset=SPECIAL) -> Path:
    path = folder / f"preset{SUFFIXES[format_name]}"
    path.write_text(write_preset(format_name, preset), encoding="utf-8")
    return path


def _options(words) -> set:
    return {option.canonical for option in parse_options(words, SMALL_HELP)}


@pytest.mark.parametrize("format_name", ["json", "args", "shell", "systemd"])
def test_formats_that_hold_a_command_come_back_as_it(format_name, tmp_path):
    """Wrapper, program, arguments and variables are as they were written."""
    found = read_preset(str(_written(format_name, tmp_path)))

    assert found.words(SMALL_HELP, "other") == SPECIAL.argv
    assert found.env == SPECIAL.env


@pytest.mark.parametrize("format_name", ["llama-swap", "compose"])
def test_files_of_several_models_come_back_but_for_the_address(format_name, tmp_path):
    """The port is whoever's who starts it, and a container has the program at another place."""
    found = read_preset(str(_written(format_name, tmp_path)))

    words = found.words(SMALL_HELP, "other")
    place, meant = words.index("--model"), SPECIAL.argv.index("--model")
    assert words[: place - 1] == SPECIAL.argv[: meant - 1]
    assert words[place:-4] == SPECIAL.argv[meant:-4]
    assert words[-4::2] == ("--host", "--port")
    assert found.env == SPECIAL.env
    assert found.in_container == (format_name == "compose")


def test_an_ini_preset_comes_back_as_options(tmp_path):
    """Keys become flags again, switches that are off their negative form."""
    found = read_preset(str(_written("ini", tmp_path)))

    program, *words = found.words(SMALL_HELP, "llama-server")

    assert program == "llama-server"
    assert "--no-warmup" in words
    wanted = {o for o in _options(SPECIAL.served_arguments) if o[0] not in ("--host", "--port")}
    assert _options(words) == wanted


def test_an_env_preset_comes_back_as_variables(tmp_path):
    """What was written as LLAMA_ARG_* stays so; the program is whoever reads them."""
    found = read_preset(str(_written("env", tmp_path)))

    assert found.env["LLAMA_ARG_CTX_SIZE"] == "8192"
    assert found.env["NOTE"] == "two words"
    assert found.words(SMALL_HELP, "llama-server") == ("llama-server",)


@pytest.mark.parametrize("format_name", ["json", "ini", "shell", "env", "systemd", "compose"])
def test_a_preset_tells_its_workload(format_name, tmp_path):
    """A comparison can ask for what the preset was tuned for, whichever format has a heading."""
    found = read_preset(str(_written(format_name, tmp_path))).workload

    # A comment does not tell the text that prompts are cut from.
    told = replace(SPECIAL.workload, text="") if format_name != "json" else SPECIAL.workload
    assert found == told


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# tuned for: speed",
        "# tuned for: x: context 0, parallel 1, prompt+generated tokens 1+1 (weight 1); judged by",
        "# tuned for: x: context 9, parallel 1, prompt+generated tokens many; judged by tg",
    ],
)
def test_a_comment_of_others_tells_no_workload(line, tmp_path):
    """A line that autofit did not write is only a comment."""
    path = tmp_path / "run.args"
    path.write_text(f"{line}\nllama-server -m a.gguf\n")

    assert read_preset(str(path)).workload is None


def test_a_folder_of_a_study_stands_for_its_preset(tmp_path):
    """Whoever names the study means what it has found."""
    (tmp_path / "presets").mkdir()
    _written("json", tmp_path / "presets")

    assert read_preset(str(tmp_path)).argv == SPECIAL.argv


@pytest.mark.parametrize(
    ("text", "argv", "env"),
    [
        (
            "llama-server -m 'a b.gguf' -ngl 99",
            ("llama-server", "-m", "a b.gguf", "-ngl", "99"),
            {},
        ),
        ("A=1 B='x y' ./llama-server -c 8", ("./llama-server", "-c", "8"), {"A": "1", "B": "x y"}),
        (
            "env A=1 numactl -N 0 srv -fa on",
            ("numactl", "-N", "0", "srv", "-fa", "on"),
            {"A": "1"},
        ),
    ],
)
def test_a_quoted_command_is_a_preset(text, argv, env):
    """Settings before the program are variables, as a shell has it."""
    found = read_preset(text)

    assert (found.argv, found.env) == (argv, env)


def test_a_script_of_others_is_read(tmp_path):
    """Continued lines are one command; `set` and `cd` do not concern it."""
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\nset -e\nexport A=1\nB=2 srv -m x.gguf \\\n  -ngl 9 # all\n")

    found = read_preset(str(path))

    assert (found.argv, found.env) == (("srv", "-m", "x.gguf", "-ngl", "9"), {"A": "1", "B": "2"})


def test_defaults_of_a_router_count_for_its_model(tmp_path):
    """Section * holds for every model, which may say otherwise."""
    path = tmp_path / "models.ini"
    path.write_text("version = 1\n[*]\nc = 4096 ; all\nngl = 9\n[tiny]\nmodel = t.gguf\nngl = 1\n")

    words = read_preset(str(path)).words(SMALL_HELP, "srv")

    assert words == ("srv", "-c", "4096", "-ngl", "1", "--model", "t.gguf")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "is no preset"),
        ("a.json", "{", "is no preset"),
        ("a.ini", "[a]\nc = 1\n[b]\nc = 2\n", "holds 2 servers: a, b"),
        ("a.ini", "[a]\nnonsense\n", "neither"),
        ("a.sh", "one -a\ntwo -b\n", "more than one command"),
        ("a.args", "# nothing\n", "holds no launch command"),
        ("a.args", "srv 'open", "is no preset"),
    ],
)
def test_a_faulty_file_is_refused_by_name(name, text, message, tmp_path):
    """What is wrong is said, with the file it is wrong in."""
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(UsageError, match=message) as raised:
        read_preset(str(path))

    assert name in raised.value.message


@pytest.mark.parametrize("given", ["missing.json", "results/none", "", "A=1 'open"])
def test_what_is_neither_file_nor_command_is_refused(given):
    """A misspelt file name is not taken for a program."""
    with pytest.raises(UsageError):
        read_preset(given)


def test_a_folder_without_presets_is_refused(tmp_path):
    """A study without a winner has nothing to compare."""
    with pytest.raises(UsageError, match="no presets"):
        read_preset(str(tmp_path))
