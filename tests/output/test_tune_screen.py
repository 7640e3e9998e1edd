"""The last screen of a tune."""

from __future__ import annotations

import io
from typing import Any

import pytest
from output.tune_sample import RESULT
from rich.console import Console
from study.study_sample import header

from autofit.output.text.last_screen import print_tune_result

BUSY = {"words": ["other processes used 3 of 4 cores"] * 4, "busy_launches": [1]}
UNDECIDED = {"median": 1.5, "low": 0.98, "high": 2.31, "n": 3}
NOTES = [f"note {number}: {'long ' * 30}" for number in range(5)]


def screen(width: int = 80, **changes: Any) -> list[str]:
    """Return the lines of the screen for a result with changes."""
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    print_tune_result({**RESULT, **changes}, header(), console)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    "changes", [{}, {"conditions": BUSY, "gain": UNDECIDED, "notes": NOTES, "cliffs": []}]
)
def test_screen_has_20_lines_of_80_columns(changes):
    """Also with warnings it fits, and only the command may be broken by the terminal."""
    argv = ["llama-server", *(f"--some-option {n}" for n in range(20))]
    lines = screen(**changes, winner={**RESULT["winner"], "argv": argv})
    (command,) = (line for line in lines if "llama-server" in line)

    assert max(len(line) for line in lines if line is not command) <= 80
    assert len(lines) + len(command) // 80 <= 20


def test_screen_has_speedup_proof_figures_and_links():
    """It starts with task and speedup; preset and study are the last lines."""
    lines = screen()
    cells = [line.split() for line in lines]

    assert "8192" in lines[1]
    assert lines[2] == "1.42x as fast (95% interval 1.37 to 1.47)"
    assert "850 MiB left on CUDA0" in lines[3]
    assert ["own", "settings", "tuned"] in cells
    assert ["request", "9.1", "s", "6.4", "s"] in cells
    assert ["generation", "22", "tokens/s", "42", "tokens/s"] in cells
    assert cells[-2] == ["preset", "presets/winner.ini"]
    assert cells[-1] == ["more", "autofit", "show", "results/x"]


def test_bookkeeping_is_not_on_the_screen():
    """Launches, outcomes, boundaries and the time spent are in `autofit show`."""
    text = "\n".join(screen())

    for part in ("launches", "boundary", "time spent", "search ended", "completed"):
        assert part not in text


def test_at_most_three_notices_are_shown_and_the_rest_counted():
    """Warnings come before notes, and each has one line."""
    lines = screen(conditions=BUSY, gain=UNDECIDED, notes=NOTES)
    shown = [line for line in lines if line.startswith(("Warning", "The preset has", "notice"))]

    assert len(shown) == 3
    assert "--budget" in shown[0]
    assert lines[-1].endswith("(4 more notices)")


def test_winning_baseline_has_one_column():
    """If the runtime's own settings win, there is nothing to compare them with."""
    winner = {**RESULT["winner"], "is_baseline": True}
    lines = screen(winner=winner, gain={"median": 1.0, "low": 1.0, "high": 1.0, "n": 4})

    assert lines[2] == "The runtime's own settings are the fastest found"
    assert not any("tuned" in line for line in lines)


def test_without_a_winner_the_screen_has_the_reason_and_the_study():
    """A baseline that failed is a warning."""
    failed = {**RESULT["baseline"], "outcome": {"kind": "out_of_memory", "evidence": "cudaMalloc"}}
    lines = screen(winner=None, gain=None, preset=None, baseline=failed)

    assert "Nothing was proven" in lines[2]
    assert "cudaMalloc" in lines[3]
    assert lines[-1].split() == ["more", "autofit", "show", "results/x"]


def test_a_very_long_command_is_left_to_its_file():
    """A command with an override for each layer would fill the screen."""
    argv = ["llama-server", *(f"--override-tensor=blk.{n}.ffn=CPU" for n in range(40))]
    lines = screen(winner={**RESULT["winner"], "argv": argv})

    assert len(lines) <= 20
    assert "sh presets/winner.args" in lines


def test_answers_have_a_line():
    """It says what the settings do to the answers."""
    answers = {"verdict": "equal", "words": ["answers match the baseline (192 of 192 tokens)"]}

    assert "answers match the baseline (192 of 192 tokens)" in screen(answers=answers)


@pytest.mark.parametrize("count", [2, 12])
def test_trade_offs_fit_on_the_screen(count):
    """The preset's row is the first, and shared settings are left out."""
    params = [{"n_cpu_moe": 20 + n, "ubatch": 512, "threads": 8} for n in range(count)]
    front = [
        {"params": one, "pp_per_s": 1000.0 + n, "tg_per_s": 30.0 - n, "request_s": 5.0 + n,
         "free_mib": {"CUDA0": 100.0 * n}, "is_preset": n == 1}
        for n, one in enumerate(params)
    ]  # fmt: skip
    lines = screen(pareto=front, notes=NOTES, conditions=BUSY)
    rows = [line for line in lines if "n_cpu_moe" in line]

    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert "(preset) n_cpu_moe=21" in rows[0]
    assert len(rows) == min(count, 5)
    assert not any("ubatch" in row for row in rows)
    assert any("7 more" in line for line in lines) == (count == 12)


def test_the_title_has_the_memory_that_the_run_may_use():
    """A limit of --device replaces the size of the card."""
    stream = io.StringIO()
    limited = header(options={"devices_mib": {"CUDA0": 6100.0}})
    print_tune_result(RESULT, limited, Console(file=stream, width=80))

    assert "6,100 MiB" in stream.getvalue().splitlines()[1]
