"""A comparison as people read it: the verdict, then both sides beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.output.text.conclusion import meanwhile
from autofit.text_format import UNKNOWN, duration, estimate, mib, number, one_line

COMPARISON_HEAD = ("", "A", "B", "speed of B over A")
_ROWS = (
    ("request_s", "seconds per request"),
    ("pp_per_s", "prompt tokens/s"),
    ("tg_per_s", "generated tokens/s"),
    ("ttft_s", "seconds to first token"),
)
_REQUESTS = (("first_request", "first request"), ("second_request", "second request"))


def print_comparison(result: Mapping[str, Any], console: Console) -> None:
    """Print what `compare --json` prints, for people."""
    console.print()
    headline, *others = result["words"]
    console.print(Text(one_line(headline), style="bold"))
    for words in others:
        console.print(Text(one_line(words)))
    table = Table(box=None, pad_edge=False)
    for name in COMPARISON_HEAD:
        table.add_column(name, overflow="fold")
    for row in comparison_rows(result):
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console.print()
    console.print(table)
    most = result["max_rounds"]
    rounds = f"{result['rounds']} of at most {most} round{'s' * (most != 1)}"
    console.print(
        Text(f"{rounds}, {result['launches']} launches in {duration(result['seconds'])}")
    )
    if result.get("conditions"):
        console.print(Text(f"the machine meanwhile: {meanwhile(result['conditions'])}"))
    console.print(Text(f"study {one_line(result['study'])}"))


def comparison_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Both sides beside each other, under `COMPARISON_HEAD`."""
    a, b, ratios = result["a"], result["b"], result["ratios"]
    yield ("preset", a["name"], b["name"], "")
    yield ("runtime", a["runtime"], b["runtime"], "")
    for key, words in _ROWS:
        sides = (estimate(side["estimates"].get(key)) for side in (a, b))
        yield (words, *sides, _ratio(ratios.get(key)))
    for request, words in _REQUESTS:
        for key, unit in (("pp_per_s", "prompt tokens/s"), ("ttft_s", "s to first token")):
            sides = (estimate(side[request].get(key)) for side in (a, b))
            yield (f"{words}, {unit}", *sides, _ratio(ratios.get(f"{request}_{key}")))
    yield ("seconds to load", estimate(a["load_s"]), estimate(b["load_s"]), "")
    for device in dict.fromkeys((*a["peak_mib"], *b["peak_mib"])):
        used = (mib(side["peak_mib"].get(device)) for side in (a, b))
        yield (f"{device} at the peak", *used, "")
        free = (mib(side["free_mib"].get(device)) for side in (a, b))
        yield (f"{device} left free", *free, "")


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if not ratio:
        return UNKNOWN
    if ratio["low"] is None:
        return number(ratio["median"])
    return f"{number(ratio['median'])} ({number(ratio['low'])} to {number(ratio['high'])})"
