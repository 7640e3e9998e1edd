"""A study on the terminal, and as Markdown where both show the same."""

from __future__ import annotations

import io
import shlex

import pytest
from output.tune_sample import RESULT, make_study
from rich.console import Console
from study.study_sample import header

from autofit.errors import UsageError
from autofit.output.report.markdown_report import markdown_report
from autofit.output.text.console import make_console
from autofit.output.text.study_text import launch_command, print_study
from autofit.study.study_folder import Study


def _shown(study: Study, width: int | None = None) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width) if width else make_console(stream)
    print_study(study, console)
    return stream.getvalue()


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_conclusion_comes_first_and_nothing_is_missing(tmp_path, render):
    """Speedup, headroom, settings, boundary, cliff, all launches and evidence are shown."""
    text = render(make_study(tmp_path / "study"))

    for part in (
        "1.42x as fast (95% interval 1.37 to 1.47)",
        "proven at full context",
        "CUDA0 850 MiB, host unknown",
        "19 layers",
        "no, estimated",
        "20 to 19",
        "9.1 (8.92 to 9.37, n = 5)",
        "16 min 30 s",
        "not recorded",
        "29%",
        "1,021 (no interval, n = 2)",
        "out of memory at context (kv, CUDA0)",
        "crashed at warmup (device lost)",
        "cudaMalloc failed: out of memory",
        "memory did not come back within 30 s (#1 to #17)",
        "NVIDIA GeForce RTX 3060",
    ):
        assert part in text
    assert text.index("1.42x as fast") < text.index("19 layers") < text.index("crashed at warmup")


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_older_study_has_no_table_of_the_time_spent(tmp_path, render):
    """A result without `spent` shows the seconds by phase instead."""
    result = {name: value for name, value in RESULT.items() if name != "spent"}
    result["seconds_by_phase"] = {"baseline": 96.0, "search": 530.0, "prove": 0}
    text = render(make_study(tmp_path / "study", result=result))

    assert "30 min 34 s (baseline 1 min 36 s, search 8 min 50 s)" in text
    assert "length of test" not in text


@pytest.mark.parametrize("render", [_shown, markdown_report])
@pytest.mark.parametrize(
    ("launches", "shown"),
    [
        (9, "9 (baseline 1, search 8)"),
        (10, "10 (baseline 1, search 8, 1 cut off by a stop)"),
        (8, "8 (baseline 1, search 8, 1 rejected before launch)"),
    ],
)
def test_launches_without_an_outcome_are_counted(tmp_path, render, launches, shown):
    """The line of launches explains a difference to the number of outcomes."""
    counts = {"completed": 7, "out_of_memory": 2}
    phases = {"baseline": 1, "boundary": 0, "search": 8}
    result = {**RESULT, "launches": launches, "outcomes": counts, "launches_by_phase": phases}
    text = " ".join(render(make_study(tmp_path / "study", result=result)).split())

    assert shown in text
    assert "completed 7, out of memory 2" in text


@pytest.mark.parametrize("width", [80, 120])
def test_screen_is_never_wider_than_the_terminal(tmp_path, width):
    """No line is longer than the terminal is wide."""
    text = _shown(make_study(tmp_path / "study"), width)

    assert max(map(len, text.splitlines())) <= width
    assert "1.42x as fast" in text


def test_pipe_gets_whole_lines(tmp_path):
    """Without a terminal no cell is wrapped, so that grep finds whole lines."""
    lines = _shown(make_study(tmp_path / "study")).splitlines()

    (line,) = [line for line in lines if "timed out at prompt" in line and "launch" not in line][
        :1
    ]
    assert "boundary" in line
    assert "n_cpu_moe=16" in line


def test_no_line_of_a_log_ends_in_blanks(tmp_path):
    """Tables and facts have no trailing blanks, and columns stay aligned."""
    lines = _shown(make_study(tmp_path / "study")).splitlines()

    assert [line for line in lines if line != line.rstrip()] == []
    heads = next(line for line in lines if line.startswith("layout "))
    rows = lines[lines.index(heads) + 1 :]
    assert rows[0].index("q8_0") == heads.index("KV type")


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_unfinished_study_says_how_to_resume(tmp_path, render):
    """A study without a conclusion shows its launches and how to resume."""
    text = render(make_study(tmp_path / "study", result=None))

    assert shlex.quote(str(tmp_path / "study")) + " --resume" in text
    assert "crashed at warmup" in text


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_study_without_a_launch_is_shown(tmp_path, render):
    """A study that has just begun can be shown."""
    Study.create(tmp_path / "study", header()).close()

    assert "Qwen3-30B-A3B-Q4_K_M" in render(Study.open(tmp_path / "study"))


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_hostile_text_stays_text(tmp_path, render):
    """Evidence and names are neither terminal codes nor Markdown."""
    text = render(make_study(tmp_path / "study", hostile=True))

    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("# heading")]


def test_command_of_a_launch(tmp_path):
    """The command of a launch has its variables, quoted words and a real port."""
    study = make_study(tmp_path / "study")

    assert launch_command(study, 3, port=8123, unset=["LLAMA_ARG_X"]) == (
        "env -u LLAMA_ARG_X GGML_NO_BACKTRACE=1 "
        "llama-server -m 'model with space.gguf' --port 8123"
    )
    with pytest.raises(UsageError, match="no trial 99") as caught:
        launch_command(study, 99, port=8123)
    assert "up to 17" in caught.value.hint


def test_on_a_narrow_terminal_each_launch_has_one_line(tmp_path):
    """A table of nine columns would take several lines for each of them."""
    stream = io.StringIO()
    print_study(make_study(tmp_path / "study"), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("launches; "))

    launches = lines[start + 1 : start + 18]
    assert [line.split()[0] for line in launches] == [f"#{n}" for n in range(1, 18)]
    assert max(map(len, launches)) <= 80
