"""A tune that keeps the front of prompts, generation and headroom."""

from __future__ import annotations

from pathlib import Path

import pytest
from autofit_program import AutofitProgram, Done
from tune_machine import TuneMachine

from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[Path, Done, Done]:
    """The folder of a tune, the tune, and the output of `show`."""
    folder = tmp_path_factory.mktemp("pareto")
    program = AutofitProgram(folder)
    machine = TuneMachine(folder, 2600.0)
    words = machine.words(
        "study", max_launches=8, objective="pareto", require="tg>=0.5", dialect=machine.dialect
    )
    return folder / "study", program.run(*words, "--json"), program.run("show", "study")


def test_no_candidate_of_the_front_dominates_another(tuned) -> None:
    """Every candidate is better than each other one in a metric, and keeps the requirements."""
    _, done, _ = tuned
    assert done.code == 0, done.err
    front = done.json["pareto"]

    assert front
    values = [(row["pp_per_s"], row["tg_per_s"], row["free_mib"]["CUDA0"] // 64) for row in front]
    for mine in values:
        others = [its for its in values if its != mine]
        assert all(any(a > b for a, b in zip(mine, its, strict=True)) for its in others)
    assert all(row["tg_per_s"] >= 0.5 for row in front)


def test_the_preset_has_the_fewest_seconds_per_request(tuned) -> None:
    """The objective of the preset is seconds per request, and the output says so."""
    study, done, shown = tuned

    assert done.json["objective"] == "request_s"
    assert done.json["preset"]
    assert "preset is for" in shown.out
    assert "the fewest seconds per request" in shown.out
    assert Study.open(study).result["pareto"] == done.json["pareto"]


def test_the_ends_of_the_front_are_within_the_budget(tuned) -> None:
    """The search for the best of a single rate stays within the allowed launches."""
    _, done, _ = tuned

    phases = done.json["launches_by_phase"]
    assert phases["baseline"] + phases["boundary"] + phases["search"] <= 8


def test_seconds_and_the_end_of_the_search_are_reported(tuned) -> None:
    """The result has the seconds by phase, and the reason why the search ended."""
    _, done, shown = tuned
    result = done.json

    assert set(result["seconds_by_phase"]) == set(result["launches_by_phase"])
    assert 0 < sum(result["seconds_by_phase"].values()) <= result["seconds"] + 1
    assert result["search"]["ended_by"] in {"gain", "space", "budget"}
    assert "search ended" in shown.out
