"""Suites of simulated machines: real fake servers, kept settings, and nights that follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit_program import AutofitProgram, Done
from tune_machine import TuneMachine

# Beside the card's end: one layer of experts more does not fit.
CARD_MIB = 2600.0
SERVED = "llama-server -ngl 99 -ncmoe 4 -c 2048 -np 1 -ub 512 --fit off"


class Nights:
    """Sweeps over entries that have a machine each, all alike on the first night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = AutofitProgram(folder)
        self.machines: dict[str, TuneMachine] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.suite = folder / "suite.yaml"
        self.baseline = folder / "suite.baseline.json"

    def add(self, name: str, **changed: object) -> TuneMachine:
        """An entry that measures kept settings on a machine of its own; returns the machine."""
        machine = TuneMachine(self.folder / name, CARD_MIB)
        self.machines[name] = machine
        self.entries[name] = {
            "name": name,
            "mode": "remeasure",
            "model": str(machine.model),
            "runtime": str(machine.server),
            "dialect": str(machine.dialect),
            "workload": str(machine.workload),
            "space": str(machine.space),
            "preset": SERVED,
            "rounds": 1,
            "time_out": "3m",
            "answers": False,
            "neighbours": False,
            "boundary": False,
            **changed,
        }
        return machine

    def write(self, **suite: object) -> None:
        """Write the suite; JSON is YAML, too."""
        entries = list(self.entries.values())
        self.suite.write_text(json.dumps({**suite, "entries": entries}), encoding="utf-8")

    def sweep(self, *words: object, timeout_s: float = 300) -> Done:
        """Run a sweep to its end."""
        return self.program.run("sweep", self.suite, *words, "--json", timeout_s=timeout_s)

    def take_what_is_kept(self) -> None:
        """From now on the settings are those of the baseline."""
        for entry in self.entries.values():
            entry.pop("preset", None)

    def keep_alike(self, source: str) -> None:
        """Give every entry what the baseline keeps of one, as if they were measured alike."""
        data = json.loads(self.baseline.read_text(encoding="utf-8"))
        kept = data["entries"][source]
        data["entries"] = {
            name: {**kept, "record": {**kept["record"], "name": name}} for name in self.entries
        }
        self.baseline.write_text(json.dumps(data), encoding="utf-8")

    @property
    def launches(self) -> int:
        """How many processes have loaded a model so far."""
        return sum(machine.launches for machine in self.machines.values())


def found(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The verdict on an entry."""
    return next(entry for entry in document["entries"] if entry["name"] == name)
