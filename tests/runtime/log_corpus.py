"""Logs with their expected diagnosis: real ones, and real ones with an inserted failure.

Real logs are `tests/data/logs/<kind>/<name>.log`. `<name>.yaml` has further expected values
(any of where, buffer, stage, device, requested_mib, reason; `exit` is the server's exit
status). Every file is a test case.

`tests/data/logs/splices.yaml` is a table of cases made from the real logs. In the log `base`,
after the first line that contains the text of the place `at`, `lines` are inserted ("E text"
with the log's own prefix, "= text" without), then those of the `chain`. Then the log ends, or
continues with `then: rest`. `replace` replaces texts of the base, `format` changes the format
of the whole log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

FOLDER = Path(__file__).parent.parent / "data" / "logs"
EXPECTED = ("where", "buffer", "stage", "device", "requested_mib", "reason")
_PREFIX = re.compile(r"^\d+\.\d{2}\.\d{3}\.\d{3} ([IWED]) ")


@dataclass(frozen=True, slots=True)
class LogCase:
    """A log and its expected diagnosis."""

    name: str
    kind: str
    text: str
    exit: str | None = None
    expect: dict[str, Any] = field(default_factory=dict)
    is_formatted: bool = False


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def _yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def real_cases() -> Iterator[LogCase]:
    """Yield the logs that are files."""
    for path in sorted(FOLDER.glob("*/*.log")):
        expected = path.with_suffix(".yaml")
        known = _yaml(expected) if expected.exists() else {}
        status = known.pop("exit", None)
        yield LogCase(
            name=path.stem,
            kind=path.parent.name,
            text=_read(path),
            exit=None if status is None else str(status),
            expect=known,
        )


@cache
def _bases() -> dict[str, str]:
    return {path.stem: _read(path) for path in FOLDER.glob("completed/*.log")}


@cache
def spliced_cases() -> tuple[LogCase, ...]:
    """Return the logs that the table describes."""
    table = _yaml(FOLDER / "splices.yaml")
    return tuple(_splice(entry, table) for entry in table["splices"])


def all_cases() -> list[LogCase]:
    """Return all cases; their names are unique."""
    return [*real_cases(), *spliced_cases()]


def _splice(entry: dict[str, Any], table: dict[str, Any]) -> LogCase:
    base = _bases()[entry["base"]].splitlines()
    for old, new in entry.get("replace", ()):
        base = [line.replace(old, new) for line in base]
    inserted = list(entry["lines"])
    if "chain" in entry:
        buffer = entry.get("buffer", "")
        inserted += [line.replace("{buffer}", buffer) for line in table["chains"][entry["chain"]]]
    continues = entry.get("then") == "rest"
    lines = _insert(base, entry["at"], inserted, table["places"], continues=continues)
    if "also" in entry:
        lines = _insert(lines, entry["also"]["at"], entry["also"]["lines"], table["places"])
    lines = FORMATS[entry.get("format", "plain")](lines, base)
    status = entry.get("exit")
    return LogCase(
        name=entry["name"],
        kind=entry["kind"],
        text="".join(f"{line}\n" for line in lines),
        exit=None if status is None else str(status),
        expect=dict(entry.get("expect", {})),
        is_formatted="format" in entry or entry["base"] == "cpu-ok-jsonl",
    )


def _insert(
    base: list[str],
    place: str,
    inserted: list[str],
    places: dict[str, str],
    *,
    continues: bool = False,
) -> list[str]:
    if place == "start":
        return [_add_prefix(line, "") for line in inserted]
    text = places.get(place, place)
    at = next(number for number, line in enumerate(base) if text in line)
    prefixed = [_add_prefix(line, base[at]) for line in inserted]
    return [*base[: at + 1], *prefixed, *(base[at + 1 :] if continues else [])]


def _add_prefix(line: str, neighbour: str) -> str:
    """Return the line with the prefix of its neighbour in the log."""
    mark, text = line[0], line[2:]
    if mark == "=":
        return text
    found = _PREFIX.match(neighbour)
    return f"{neighbour[: found.start(1)]}{mark} {text}" if found else text


def _bare(lines: list[str], _base: list[str]) -> list[str]:
    return [_PREFIX.sub("", line) for line in lines]


_LEVELS = {"I": "info", "W": "warn", "E": "error", "D": "debug"}


def _jsonl(lines: list[str], _base: list[str]) -> list[str]:
    made = []
    for line in lines:
        found = _PREFIX.match(line)
        if found:
            document = {"type": "log", "time": 1, "level": _LEVELS[found.group(1)]}
            document["msg"] = line[found.end() :] + "\n"
            made.append(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
        else:
            made.append(line)
    return made


_COLOR = {"I": "32", "W": "35", "E": "31", "D": "33"}


def _colors(lines: list[str], _base: list[str]) -> list[str]:
    return [
        _PREFIX.sub(
            lambda m: f"\x1b[34m{m[0][:-3]}\x1b[0m \x1b[{_COLOR[m[1]]}m{m[1]} \x1b[0m", line
        )
        for line in lines
    ]


def _crlf(lines: list[str], _base: list[str]) -> list[str]:
    return [f"{line}\r" for line in lines]


def _journal(lines: list[str], _base: list[str]) -> list[str]:
    return [f"Oct 12 08:15:{n % 60:02d} box llama-server[4711]: {x}" for n, x in enumerate(lines)]


_OLD_TEXTS = (
    ("common_memory_breakdown_print", "llama_memory_breakdown_print"),
    ("srv  llama_server: model loaded", "main: model loaded"),
    (
        "srv  llama_server: listening on http://127.0.0.1:18100",
        "main: server is listening on http://127.0.0.1:18100 - starting the main loop",
    ),
    ("sched_reserve:", "llama_context:"),
    ("llama_kv_cache:", "llama_kv_cache_unified:"),
    (" (load_mode = none)", " (mmap = false)"),
    ("cmn  common_init_:", "common_init_from_params:"),
)


def _old(lines: list[str], base: list[str]) -> list[str]:
    """Format lines as in early 2025: no prefixes, other function names, timings in a block."""
    made = []
    for line in _bare(lines, base):
        for new, old in _OLD_TEXTS:
            line = line.replace(new, old)  # noqa: PLW2901 - one text after the other
        timing = re.match(r"(slot print_timing: .* \| )((?:prompt eval|       eval) time.*)", line)
        made += [timing[1], timing[2]] if timing else [line]
    return made


def _router(lines: list[str], _base: list[str]) -> list[str]:
    """Format lines as those of a router's child, with a healthy second child."""
    whole = _bases()["router-ok"].splitlines()
    healthy = [line for line in whole if line.startswith("[")]
    own = [line for line in whole if not line.startswith("[")]
    stop = next(n for n, line in enumerate(own) if "cleaning up before exit" in line)
    child = [f"[34157] {line}" for line in lines]
    mixed = []
    for number in range(max(len(child), len(healthy))):
        mixed += child[number : number + 1] + healthy[number : number + 1]
    spawn = (
        "0.00.143.280 I srv          load: spawning server instance with name=bad on port 34157"
    )
    exit_ = "0.09.318.997 I srv           run: instance name=bad exited with status 1"
    return [*own[:stop], spawn, *mixed, exit_, *own[stop:]]


def _restarted(lines: list[str], base: list[str]) -> list[str]:
    return [*lines, *base]


FORMATS: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "plain": lambda lines, _base: lines,
    "bare": _bare,
    "jsonl": _jsonl,
    "colors": _colors,
    "crlf": _crlf,
    "journal": _journal,
    "old": _old,
    "router": _router,
    "restarted": _restarted,
}
