"""One thing that was checked of a preset's file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked and whether it held; `passed` is None where it cannot be told here."""

    name: str
    passed: bool | None
    detail: str = ""

    @property
    def line(self) -> str:
        """The check for people."""
        word = {True: "verified", False: "NOT verified", None: "not checked"}[self.passed]
        return f"{word}: {self.name}" + (f": {self.detail}" if self.detail else "")


def verification(checks: Iterable[Check]) -> dict[str, Any]:
    """The checks as JSON data; `passed` is false when one failed, null when none could tell."""
    told = list(checks)
    verdicts = {check.passed for check in told} - {None}
    return {
        "passed": False not in verdicts if verdicts else None,
        "checks": [asdict(check) for check in told],
    }
