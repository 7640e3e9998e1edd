"""The report as Markdown."""

from __future__ import annotations

from output.tune_sample import HOSTILE, RESULT, make_study

from autofit.output.report.markdown_report import code, escape, markdown_report, table


def test_result_without_a_winner_recommends_nothing(tmp_path):
    """A result without a winner has no command; its best so far is marked."""
    result = {**RESULT, "winner": None, "gain": None, "preset": None}
    text = markdown_report(make_study(tmp_path / "study", result=result))

    assert "Nothing was proven" in text
    assert "NOT proven" in text
    assert "## Command" not in text


def test_special_characters_are_escaped():
    """Markup, tables and links become plain text; plain names are unchanged."""
    assert escape(HOSTILE) == (
        r"\</script\>\<script\>alert('x')\</script\>\|\`\*\*\[a\](javascript:b)\\u001b\[31m"
        " # heading"
    )
    assert escape("n_cpu_moe=20 Q4_K_M (b1-2)") == "n_cpu_moe=20 Q4_K_M (b1-2)"
    assert escape("_x_") == r"\_x\_"
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |"


def test_code_cannot_end_its_own_block():
    """A preset with backticks gets a longer fence."""
    assert code("a ``` b", "ini") == "````ini\na ``` b\n````"
