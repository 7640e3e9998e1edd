"""Suites of simulated machines: fake servers, given settings, and nights after each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit_program import AutofitProgram, Done
from tune_machine import TuneMachine

# One more layer of experts does not fit.
CARD_MIB = 2600.0
SERVED = "llama-server -ngl 99 -ncmoe 4 -c 2048 -np 1 -ub 512 --fit off"


class Nights:
    """Sweeps over entries with a machine each; all are equal on the first night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = AutofitProgram(folder)
        self.machines: dict[str, TuneMachine] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.suite = folder / "suite.yaml"
        self.baseline = folder / "suite.baseline.json"

    def add(self, name: str, **changed: object) -> TuneMachine:
        """Add an entry that measures given settings on its own machine; return the machine."""
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
        """Write the suite as JSON, which is YAML, too."""
        entries = list(self.entries.values())
        self.suite.write_text(json.dumps({**suite, "entries": entries}), encoding="utf-8")

    def sweep(self, *words: object, timeout_s: float = 300) -> Done:
        """Run a sweep to its end."""
        return self.program.run("sweep", self.suite, *words, "--json", timeout_s=timeout_s)

    def use_baseline_settings(self) -> None:
        """Measure the settings of the baseline from now on."""
        for entry in self.entries.values():
            entry.pop("preset", None)

    def copy_baseline(self, source: str) -> None:
        """Give every entry the baseline of one entry."""
        data = json.loads(self.baseline.read_text(encoding="utf-8"))
        kept = data["entries"][source]
        data["entries"] = {
            name: {**kept, "record": {**kept["record"], "name": name}} for name in self.entries
        }
        self.baseline.write_text(json.dumps(data), encoding="utf-8")

    @property
    def launches(self) -> int:
        """The number of processes that have loaded a model."""
        return sum(machine.launches for machine in self.machines.values())


def found(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the verdict on an entry."""
    return next(entry for entry in document["entries"] if entry["name"] == name)
