"""Warnings about a recommended candidate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.simulated_launching import SimulatedLaunching
from session.task_sample import runner

from autofit.search.optuna_study import SearchStudy
from autofit.session.finalist import Proof
from autofit.tune.explore import Exploration
from autofit.tune.prove import launch_proof
from autofit.tune.recommend import Recommendation, add_warnings


@pytest.fixture
def warn(about, problem, finalist, tmp_path):
    """A function that returns the warnings about a winner."""

    def of(free_mib: float, host: int, limit_mib: float | None, memory=None) -> list[str]:
        launching = SimulatedLaunching(free_mib=free_mib)
        running = replace(runner(about, tmp_path / "study"), launching=launching)
        limited = about
        if limit_mib is not None:
            devices = tuple(replace(d, usable_mib=limit_mib) for d in about.devices)
            limited = replace(about, devices=devices, chooses_devices=True)
        with running.study:
            proof = Proof(finalist(host), launch_proof(finalist(host), about, running))
            exploration = Exploration(
                limited,
                running,
                memory or about.memory_model(),
                SearchStudy(problem, seed=1),
                proof.trial,
            )
            add_warnings(Recommendation(proof, None), exploration)
        return running.notes

    return of


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ((500.0, 4, None), "room for 2 more expert layers"),
        ((250.0, 4, None), "room for one more expert layer"),
        ((200.0, 4, None), None),
        ((500.0, 0, None), None),
        ((500.0, 4, 2100.0), None),
        ((500.0, 4, 2300.0), "room for one more expert layer"),
    ],
)
def test_unused_memory_is_named(warn, left, words):
    """A device with room for an expert layer, within the user's limit, is named."""
    assert [words in text for text in warn(*left)] == [True] * (words is not None)


def test_unused_memory_needs_a_prediction(warn, about):
    """Without one it is unknown where layers lie."""
    assert warn(500.0, 4, None, replace(about, devices=()).memory_model()) == []
