"""What a run spent where: launches by phase and fidelity, questions, own computing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autofit.trial.purpose import PHASES
from autofit.trial.trial import FIDELITIES, Preparation, Trial


def spending(trials: Sequence[Trial], rest: Preparation) -> dict[str, Any]:
    """The spending as JSON data; `rest` came after the last launch.

    Launches of studies of older versions have no fidelity, null here, and no preparation.
    """
    before = [*(trial.preparation for trial in trials if trial.preparation), rest]
    by_phase = [
        {"phase": phase, "fidelity": fidelity, **_launches(made)}
        for phase in PHASES
        for fidelity in (*FIDELITIES, None)
        if (made := [t for t in trials if (t.phase, t.fidelity) == (phase, fidelity)])
    ]
    by_fidelity: dict[str, Any] = {
        fidelity: _launches(trial for trial in trials if trial.fidelity == fidelity)
        for fidelity in FIDELITIES
    }
    by_fidelity["estimate"] = {
        "questions": sum(one.questions for one in before),
        "seconds": round(sum(one.questions_s for one in before), 1),
    }
    return {
        "by_phase": by_phase,
        "by_fidelity": by_fidelity,
        "own_seconds": round(sum(one.own_s for one in before), 1),
    }


def _launches(trials: Iterable[Trial]) -> dict[str, Any]:
    seconds = [trial.seconds for trial in trials]
    return {"launches": len(seconds), "seconds": round(sum(seconds), 1)}
