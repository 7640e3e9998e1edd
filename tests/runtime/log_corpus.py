"""Logs with the outcome that they must be given: real ones, and real ones with a failure put in.

Real logs lie in `tests/data/logs/<kind>/<name>.log`; what else is expected stands beside each
in `<name>.yaml` (any of where, buffer, stage, device, requested_mib, reason; `exit` is the
server's exit status). A file that is added is a case.

`tests/data/logs/splices.yaml` is a table of cases made from the real ones: in the log `base`,
after the first line that holds the text of the place `at`, stand `lines` ("E text" with the
log's own prefix, "= text" bare), then those of the `chain`; then the log ends, or goes on with
`then: rest`. `replace` changes words of the base, `format` the look of the whole.
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
    """One log and what must be said of it."""

    name: str
    kind: str
    text: str
    exit: str | None = None
    expect: dict[str, Any] = field(default_factory=dict)
    is_dressed: bool = False


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def _yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def real_cases() -> Iterator[LogCase]:
    """The logs that are files."""
    for path in sorted(FOLDER.glob("*/*.log")):
        beside = path.with_suffix(".yaml")
        known = _yaml(beside) if beside.exists() else {}
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
    """The logs that the table describes."""
    table = _yaml(FOLDER / "splices.yaml")
    return tuple(_splice(entry, table) for entry in table["splices"])


def all_cases() -> list[LogCase]:
    """Every case; names are unique."""
    return [*real_cases(), *spliced_cases()]


def _splice(entry: dict[str, Any], table: dict[str, Any]) -> LogCase:
    base = _bases()[entry["base"]].splitlines()
    for old, new in entry.get("replace", ()):
        base = [line.replace(old, new) for line in base]
    put_in = list(entry["lines"])
    if "chain" in entry:
        buffer = entry.get("buffer", "")
        put_in += [line.replace("{buffer}", buffer) for line in table["chains"][entry["chain"]]]
    lines = _put(base, entry["at"], put_in, table["places"], goes_on=entry.get("then") == "rest")
    if "also" in entry:
        lines = _put(lines, entry["also"]["at"], entry["also"]["lines"], table["places"])
    lines = FORMATS[entry.get("format", "plain")](lines, base)
    status = entry.get("exit")
    return LogCase(
        name=entry["name"],
        kind=entry["kind"],
        text="".join(f"{line}\n" for line in lines),
        exit=None if status is None else str(status),
        expect=dict(entry.get("expect", {})),
        is_dressed="format" in entry or entry["base"] == "cpu-ok-jsonl",
    )


def _put(
    base: list[str],
    place: str,
    put_in: list[str],
    places: dict[str, str],
    *,
    goes_on: bool = False,
) -> list[str]:
    if place == "start":
        return [_dress(line, "") for line in put_in]
    text = places.get(place, place)
    at = next(number for number, line in enumerate(base) if text in line)
    dressed = [_dress(line, base[at]) for line in put_in]
    return [*base[: at + 1], *dressed, *(base[at + 1 :] if goes_on else [])]


def _dress(line: str, neighbour: str) -> str:
    """The line as the log's neighbouring line is written."""
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


_OLD_WORDS = (
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
    """As builds of early 2025 wrote: no prefixes, other function names, timings in a block."""
    made = []
    for line in _bare(lines, base):
        for new, old in _OLD_WORDS:
            line = line.replace(new, old)  # noqa: PLW2901 - one word after the other
        timing = re.match(r"(slot print_timing: .* \| )((?:prompt eval|       eval) time.*)", line)
        made += [timing[1], timing[2]] if timing else [line]
    return made


def _router(lines: list[str], _base: list[str]) -> list[str]:
    """A child of a router beside a healthy one, which then ends."""
    whole = _bases()["router-ok"].splitlines()
    healthy = [line for line in whole if line.startswith("[")]
    own = [line for line in whole if not line.startswith("[")]
    stop = next(n for n, line in enumerate(own) if "cleaning up before exit" in line)
    child = [f"[34157] {line}" for line in lines]
    mixed = []
    for number in range(max(len(child), len(healthy))):
        mixed += child[number : number + 1] + healthy[number : number + 1]
    born = "0.00.143.280 I srv          load: spawning server instance with name=bad on port 34157"
    died = "0.09.318.997 I srv           run: instance name=bad exited with status 1"
    return [*own[:stop], born, *mixed, died, *own[stop:]]


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
