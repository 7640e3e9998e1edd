"""Keeps what the benchmark of searches has found, so that it can be stopped and resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.search_run import Outcome

OURS = "autofit"
_ROOT = Path(__file__).parents[1]
# Files that decide the best point of a machine, and those that decide a search of it.
_MACHINE_SOURCES = (
    "tests/fakes/*.py", "autofit/model/**/*.py", "autofit/session/candidate_factory.py",
    "search_spaces/*.yaml", "benchmarks/search_optimum.py",
)  # fmt: skip
_SEARCH_SOURCES = (
    *_MACHINE_SOURCES, "autofit/search/*.py", "autofit/session/*.py", "autofit/memory/*.py",
    "benchmarks/search_run.py", "benchmarks/search_machine.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about a machine; `references` need no launch and are shares of the best speed."""

    seed: int
    devices: int
    effects: tuple[str, ...]
    noise: float
    best_s: float
    references: dict[str, float]


class SearchStore:
    """A folder with a file for each machine, and one for each search of it.

    Machines and searches of ours are kept by the digest of the sources that decide them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _machine_digest(self) -> str:
        return _digest(_MACHINE_SOURCES)

    @cached_property
    def _search_digest(self) -> str:
        return _digest(_SEARCH_SOURCES)

    def machine(self, seed: int) -> MachineFacts | None:
        """Return the facts about a machine, None before it was measured."""
        path = self._machine_path(seed)
        if not path.exists():
            return None
        document = json.loads(path.read_text("utf-8"))
        return MachineFacts(**{**document, "effects": tuple(document["effects"])})

    def keep_machine(self, facts: MachineFacts) -> None:
        """Remember a machine."""
        _write(self._machine_path(facts.seed), asdict(facts))

    def outcome(self, name: str, machine: int, seed: int) -> Outcome | None:
        """A finished search, None where it was not made."""
        path = self._path(name, machine, seed)
        return Outcome(**json.loads(path.read_text("utf-8"))) if path.exists() else None

    def outcomes(self, name: str, machine: int) -> Iterator[Outcome]:
        """All finished searches of a machine, the first seeds first."""
        seed = 0
        while (found := self.outcome(name, machine, seed)) is not None:
            yield found
            seed += 1

    def keep(self, name: str, machine: int, seed: int, outcome: Outcome) -> None:
        """Remember a search."""
        _write(self._path(name, machine, seed), asdict(outcome))

    def _machine_path(self, seed: int) -> Path:
        return self._folder / f"machines {self._machine_digest}" / f"{seed}.json"

    def _path(self, name: str, machine: int, seed: int) -> Path:
        kind = f"{name} {self._search_digest}" if name == OURS else name
        return self._folder / kind / f"{machine}-{seed}.json"


def _digest(patterns: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(_ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _write(path: Path, document: object) -> None:
    """Whole or not at all: the benchmark may be stopped at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document), "utf-8")
    temporary.replace(path)
