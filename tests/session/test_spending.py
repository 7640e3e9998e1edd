"""What a run spent where."""

from __future__ import annotations

import json

from trial.purpose_sample import purpose_of

from autofit.session.spending import spending
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed
from autofit.trial.trial import Preparation, Trial


def trial(number, phase, fidelity, seconds, preparation=None) -> Trial:
    """A launch of so many seconds."""
    return Trial(
        number, purpose_of(phase), Candidate({}), Completed(), seconds=seconds, fidelity=fidelity,
        preparation=preparation,
    )  # fmt: skip


TRIALS = [
    trial(1, "baseline", "short", 10.0, Preparation(2, 0.5, 0.25)),
    trial(2, "search", "short", 8.0, Preparation(1, 0.25, 1.0)),
    trial(3, "search", "short", 9.04, Preparation(0, 0.0, 1.0)),
    trial(4, "boundary", "load", 5.0),
    trial(5, "prove", "full", 20.0),
]


def test_launches_are_told_by_phase_and_fidelity():
    """In the order of the phases, each with how closely it looked, its launches and seconds."""
    told = spending(TRIALS, Preparation())["by_phase"]

    assert [tuple(row.values()) for row in told] == [
        ("baseline", "short", 1, 10.0),
        ("boundary", "load", 1, 5.0),
        ("search", "short", 2, 17.0),
        ("prove", "full", 1, 20.0),
    ]


def test_every_fidelity_is_told_also_one_without_a_launch():
    """Questions to the planner are no launches; what came after the last launch counts, too."""
    told = spending(TRIALS, Preparation(3, 1.0, 0.5))

    assert told["by_fidelity"] == {
        "estimate": {"questions": 6, "seconds": 1.8},
        "load": {"launches": 1, "seconds": 5.0},
        "short": {"launches": 3, "seconds": 27.0},
        "full": {"launches": 1, "seconds": 20.0},
    }
    assert told["own_seconds"] == 2.8
    assert json.loads(json.dumps(told)) == told


def test_launches_of_before_fidelities_were_recorded_are_told_as_such():
    """They count in their phase, and in no fidelity."""
    told = spending([trial(1, "search", None, 7.0)], Preparation())

    assert told["by_phase"] == [
        {"phase": "search", "fidelity": None, "launches": 1, "seconds": 7.0}
    ]
    assert not any(row.get("launches") for row in told["by_fidelity"].values())
