"""Inputs rebuilt from public reports, and the comparison of answers with the right ones.

A case of `tests/data/reports/*.yaml` has these keys:
    name, right   its name, and the right answer
    run           explain, import, check or plan
    files         the input files by name; the first is the argument. `@DIR@` is their folder,
                  `@MODEL@` a small model
    command       the argument instead of a file: a launch command
    options       more arguments
    encoding      of the files (default: UTF-8)
    expect        keys of the JSON document, and
        advises, advises_not   words that one of the advices has, or that none has
        notices, reasons       words that one of the notices or reasons has
        refused                a word of the message of a usage error
        code                   the exit code
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).parent / "data" / "reports"
_LISTS = {"advises": "advice", "notices": "notices", "reasons": "reasons"}
_USAGE_ERROR = 2


@dataclass(frozen=True)
class ReportCase:
    """One input with the right answer; `system` is the name of its data file."""

    system: str
    name: str
    right: str
    run: str
    expect: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    options: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def words(self, folder: Path, model: Path | None) -> list[str]:
        """Write the files into a folder, and return the arguments of autofit."""
        for name, text in self.files.items():
            text = text.replace("@DIR@", str(folder)).replace("@MODEL@", str(model))  # noqa: PLW2901
            (folder / name).write_bytes(text.encode(self.encoding))
        given = self.command or str(folder / next(iter(self.files), ""))
        if self.run == "plan":
            given = str(model)
        more = {"check": ["--against-machine", "--json"], "plan": []}.get(self.run, ["--json"])
        return [self.run, given, *more, *self.options]


def report_cases() -> list[ReportCase]:
    """Return all cases of the data folder."""
    yaml = YAML(typ="safe", pure=True)
    return [
        ReportCase(path.stem, **{**case, "options": tuple(map(str, case.get("options", ())))})
        for path in sorted(FOLDER.glob("*.yaml"))
        for case in yaml.load(path)
    ]


def find_differences(case: ReportCase, code: int, out: str, err: str) -> Iterator[str]:
    """Yield each difference between an answer and the right one."""
    expect = dict(case.expect)
    refused = expect.pop("refused", None)
    if refused is not None:
        if code != _USAGE_ERROR or refused not in err + out:
            yield f"not refused with {refused!r}: {code} {err}"
    elif code != expect.pop("code", 0):
        yield f"exit code {code}: {err}"
    else:
        document = {"notices": out.splitlines()} if case.run == "plan" else json.loads(out)
        yield from _find_missing_words(expect, document)
        for key, value in expect.items():
            right = pytest.approx(value, abs=0.01) if isinstance(value, float) else value
            if document.get(key) != right:
                yield f"{key}: {document.get(key)!r}, not {value!r}"


def _find_missing_words(expect: dict[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Yield each expected word that is missing, and remove the words from the expectation."""
    advice = " | ".join(document.get("advice", ()))
    yield from (f"advises {word}" for word in expect.pop("advises_not", ()) if word in advice)
    for key, place in _LISTS.items():
        given = [str(one) for one in document.get(place, ())]
        for word in expect.pop(key, ()):
            if not any(word in one for one in given):
                yield f"{place} lack {word!r}: {given}"
