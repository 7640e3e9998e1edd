"""A study on the terminal and as Markdown."""

from __future__ import annotations

import io
import shlex

import pytest
from output.tune_sample import HOSTILE, RESULT, make_study
from rich.console import Console
from study.study_sample import header

from autofit.errors import UsageError
from autofit.output.report.markdown_report import code, escape, markdown_report, table
from autofit.output.text.conclusion import answer
from autofit.output.text.console import make_console
from autofit.output.text.study_text import launch_command, print_study
from autofit.study.study_folder import Study


def _shown(study: Study, width: int | None = None) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width) if width else make_console(stream)
    print_study(study, console)
    return stream.getvalue()


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_answer_comes_first_and_nothing_is_missing(tmp_path, render):
    """Gain, headroom, settings, boundary, cliff, every launch and every evidence are shown."""
    text = render(make_study(tmp_path / "study"))

    for part in (
        "42% faster than the baseline",
        "proven at full context",
        "CUDA0 850 MiB, host unknown",
        "19 layers",
        "no (estimate)",
        "20 to 19",
        "9.1 (8.92 to 9.37, n = 5)",
        "loads, takes first ubatches",
        "16 min 30 s",
        "14 asked",
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
    assert text.index("42% faster") < text.index("19 layers") < text.index("crashed at warmup")


def test_an_open_boundary_of_a_probe_is_no_estimate():
    """A tune guesses the side that it did not launch, a probe leaves it unknown."""
    row = {"layout": "single:CUDA0", "cache_type": "f16", "fits": 1, "fails": None,
           "outcome": None, "proven": False, "source": "estimate"}  # fmt: skip

    tuned, probed = answer({"boundary": [row, {**row, "launches": [1]}]}, None).boundary
    assert tuned[2:] == ("unknown", "1 layer", "none", "", "no (estimate)")
    assert probed[3:] == ("1 layer", "unknown", "", "no")


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"n_cpu_moe": 6, "prefetch_slots": 4}, "512, prefetch_slots 4"),
        ({"prefetch_weights": True, "moe_cache_mib": 0}, "512, prefetch_weights on"),
        ({"moe_cache_mib": 800}, "512, moe_cache_mib 800"),
        ({"prefetch_slots": 0}, "512"),
        (None, "512"),
    ],
)
def test_a_boundary_tells_what_takes_the_memory_of_layers(params, told):
    """More layers may have run without slots, or with fewer, than with those of the row."""
    row = {"layout": "single:CUDA0", "cache_type": "f16", "ubatch": 512, "fits": 6, "fails": 5,
           "outcome": "out_of_memory", "proven": True, "params": params}  # fmt: skip

    assert answer({"boundary": [row]}, None).boundary[0][2] == told


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_a_study_of_before_spending_was_told_is_shown_without_it(tmp_path, render):
    """Seconds by phase are told as they were, and no table."""
    result = {name: told for name, told in RESULT.items() if name != "spent"}
    result["seconds_by_phase"] = {"baseline": 96.0, "search": 530.0, "prove": 0}
    text = render(make_study(tmp_path / "study", result=result))

    assert "30 min 34 s (baseline 1 min 36 s, search 8 min 50 s)" in text
    assert "spent where" not in text


@pytest.mark.parametrize("render", [_shown, markdown_report])
@pytest.mark.parametrize(
    ("launches", "told"),
    [
        (9, "9 (baseline 1, search 8)"),
        (10, "10 (baseline 1, search 8, cut off by a stop 1)"),
        (8, "8 (baseline 1, search 8, of these refused before a start 1)"),
    ],
)
def test_launches_that_have_no_outcome_are_named(tmp_path, render, launches, told):
    """After a resume there are more launches than outcomes: the words tell what is counted."""
    counts = {"completed": 7, "out_of_memory": 2}
    phases = {"baseline": 1, "boundary": 0, "search": 8}
    result = {**RESULT, "launches": launches, "outcomes": counts, "launches_by_phase": phases}
    text = " ".join(render(make_study(tmp_path / "study", result=result)).split())

    assert told in text
    assert "completed 7, out of memory 2" in text


@pytest.mark.parametrize("width", [80, 120])
def test_screen_is_never_wider_than_asked(tmp_path, width):
    """On a terminal of 80 columns nothing runs over the edge."""
    text = _shown(make_study(tmp_path / "study"), width)

    assert max(map(len, text.splitlines())) <= width
    assert "42% faster" in text


def test_pipe_gets_whole_lines(tmp_path):
    """Without a terminal no cell is wrapped, so that lines can be searched."""
    lines = _shown(make_study(tmp_path / "study")).splitlines()

    (line,) = [line for line in lines if "timed out at prompt" in line and "launch" not in line][
        :1
    ]
    assert "boundary" in line
    assert "n_cpu_moe=16" in line


def test_no_line_of_a_log_ends_in_blanks(tmp_path):
    """Neither tables nor facts; what is within a line keeps its columns."""
    lines = _shown(make_study(tmp_path / "study")).splitlines()

    assert [line for line in lines if line != line.rstrip()] == []
    heads = next(line for line in lines if line.startswith("layout "))
    rows = lines[lines.index(heads) + 1 :]
    assert rows[0].index("q8_0") == heads.index("KV type")


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_unfinished_study_says_how_to_go_on(tmp_path, render):
    """A study without a conclusion shows its launches and how to resume."""
    text = render(make_study(tmp_path / "study", result=None))

    assert shlex.quote(str(tmp_path / "study")) + " --resume" in text
    assert "crashed at warmup" in text


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_study_without_a_launch_is_shown(tmp_path, render):
    """A study that has just begun is no error."""
    Study.create(tmp_path / "study", header()).close()

    assert "Qwen3-30B-A3B-Q4_K_M" in render(Study.open(tmp_path / "study"))


def test_result_without_a_winner_recommends_nothing(tmp_path):
    """Where nothing was proven, no settings and no command are offered."""
    result = {**RESULT, "winner": None, "gain": None, "preset": None}
    text = markdown_report(make_study(tmp_path / "study", result=result))

    assert "nothing was proven" in text
    assert "## Settings" not in text
    assert "## Command" not in text


@pytest.mark.parametrize("render", [_shown, markdown_report])
def test_hostile_text_stays_text(tmp_path, render):
    """Evidence and names from files reach neither the terminal's codes nor Markdown's."""
    text = render(make_study(tmp_path / "study", hostile=True))

    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("# heading")]


def test_markdown_escapes_what_has_a_meaning():
    """Markup, tables and links in foreign text are shown, not obeyed; plain names stay plain."""
    assert escape(HOSTILE) == (
        r"\</script\>\<script\>alert('x')\</script\>\|\`\*\*\[a\](javascript:b)\\u001b\[31m"
        " # heading"
    )
    assert escape("n_cpu_moe=20 Q4_K_M (b1-2)") == "n_cpu_moe=20 Q4_K_M (b1-2)"
    assert escape("_x_") == r"\_x\_"
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |"


def test_code_cannot_end_its_own_block():
    """A preset with backticks in it is fenced with more of them."""
    assert code("a ``` b", "ini") == "````ini\na ``` b\n````"


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
