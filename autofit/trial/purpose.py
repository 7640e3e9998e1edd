"""The purpose of a trial: typed fields for code, and one sentence derived from them for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Phase = Literal["baseline", "boundary", "search", "confirm", "prove"]
PHASES: tuple[Phase, ...] = ("baseline", "boundary", "search", "confirm", "prove")

# baseline           what runs without tuning (phase baseline)
# explore            a point that the search chose (boundary, search)
# fit_check          a probe's launch: does the candidate fit? (boundary)
# round              one launch of a contender in a round (confirm)
# proof              the full context, twice (prove)
# answers            the fixed prompts, to judge the outputs of a candidate (prove)
# reference_answers  the same prompts, for the outputs to compare with (prove)
# kl_base            next-token probabilities with a wide KV type, kept in a file (prove)
# kl_score           those with a narrow KV type, compared with that file (prove)
Role = Literal[
    "baseline",
    "explore",
    "fit_check",
    "round",
    "proof",
    "answers",
    "reference_answers",
    "kl_base",
    "kl_score",
]
Subject = Literal["baseline", "finalist", "winner"]

_SUBJECT_TEXT: Mapping[Subject, str] = {
    "baseline": "the baseline",
    "finalist": "a finalist",
    "winner": "the winner",
}


@dataclass(frozen=True, slots=True)
class TrialPurpose:
    """The reason for which a candidate is launched.

    Attributes:
        round: the number of the round, from 1.
        side: the contender's name where the candidate alone does not identify it: `A` or `B`
            of a comparison, `kept` of a remeasurement.
        subject: whose answers the launch is about.
        kv_types: the types of keys and values that a pair of `kl_base` and `kl_score` is for.
        reason: why the search chose the candidate, for people only.
    """

    phase: Phase
    role: Role
    round: int | None = None
    side: str = ""
    subject: Subject | None = None
    kv_types: tuple[str, str] | None = None
    reason: str = ""

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields that decide whether a launch repeats an earlier one of the same candidate.

        The boundary and the search launch a candidate once, whatever the reason, and a
        candidate's answers are the same for a finalist and a winner.
        """
        return self.role, self.round, self.side, self.kv_types

    @property
    def description(self) -> str:
        """The purpose as a short text for people."""
        subject = _SUBJECT_TEXT[self.subject] if self.subject else "a candidate"
        kv_types = "/".join(dict.fromkeys(self.kv_types or ()))
        texts: Mapping[Role, str] = {
            "baseline": "the runtime's own choice",
            "explore": self.reason,
            "fit_check": "does it fit?",
            "round": f"round {self.round}" + (f" of {self.side}" if self.side else ""),
            "proof": "full context, twice",
            "answers": f"answers of {subject}",
            "reference_answers": f"answers of {subject}, as the reference",
            "kl_base": f"next-token probabilities to compare KV {kv_types} with",
            "kl_score": f"next-token probabilities with KV {kv_types}",
        }
        return texts.get(self.role, self.role)

    def to_dict(self) -> dict[str, Any]:
        """Return the purpose as JSON data; `purpose` is the text for people."""
        data = asdict(self)
        kv_types = list(self.kv_types) if self.kv_types else None
        return {**data, "kv_types": kv_types, "purpose": self.description}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialPurpose:
        """Return the purpose from the data of `to_dict`; other keys are ignored.

        Raises:
            KeyError: a phase or role is missing.
        """
        kv_types = data.get("kv_types")
        return cls(
            phase=data["phase"],
            role=data["role"],
            round=data.get("round"),
            side=data.get("side", ""),
            subject=data.get("subject"),
            kv_types=tuple(kv_types) if kv_types else None,
            reason=data.get("reason", ""),
        )
