"""Estimates that were asked for once, in memory and in a file of lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from autofit.trial.measurement import ReportedMemory

DeviceSizes = Mapping[str, ReportedMemory]


class EstimateRecord:
    """Sizes by question. A line is added for each answer; a torn or strange line is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, DeviceSizes | None] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return
        for line in lines:
            try:
                key, sizes = json.loads(line)
                self._known[key] = {name: ReportedMemory(**row) for name, row in sizes.items()}
            except (ValueError, TypeError, AttributeError):
                continue

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str) -> DeviceSizes | None:
        """The answer to a question that was put."""
        return self._known.get(key)

    def put(self, key: str, sizes: DeviceSizes | None, *, is_lasting: bool) -> None:
        """Keep an answer, for later runs too if it is lasting; None was no answer."""
        self._known[key] = sizes
        if sizes is None or not is_lasting:
            return
        line = json.dumps([key, {name: asdict(row) for name, row in sizes.items()}])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            pass  # a cache that cannot be written costs time only
