"""The notes of a probe that its budget has cut off."""

from __future__ import annotations

import pytest
from memory.launched_card import LaunchedCard
from study.study_sample import header

from autofit.probe.boundary_line import make_lines
from autofit.probe.probe_result import open_boundary_texts
from autofit.study.study_folder import Study


@pytest.fixture(scope="module")
def card(tmp_path_factory) -> LaunchedCard:
    """A card with a model of 24 layers."""
    return LaunchedCard.of(tmp_path_factory.mktemp("result"))


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({}, "nothing was launched"),
        ({6: True}, "6 layers with experts in RAM fit, fewer were not launched"),
        ({5: False}, "5 layers with experts in RAM do not fit, more were not launched"),
        (
            {8: True, 5: False},
            "8 layers with experts in RAM fit, 5 do not; the rest was not launched",
        ),
    ],
)
def test_open_boundary_is_described_by_its_known_sides(card, tmp_path, known, text):
    """The first note says how to continue, the others what each boundary lacks."""
    machine = card.machine
    (line,) = make_lines(
        machine.factory, card.memory(), ["single:CUDA0"], {"q8_0": machine.points["q8_0"]}
    )
    for host_layers, fits in known.items():
        line.search.record(host_layers, fits=fits)

    with Study.create(tmp_path / "study", header()) as study:
        how, note = open_boundary_texts([line], study)

    assert "--resume" in how
    assert note == f"single:CUDA0, q8_0: {text}"
