"""What a tune concluded, as texts: the same sentences on screen and in reports.

The result is the document that `tune --json` prints; keys that a failed or unfinished tune
lacks are taken as unknown.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.output.text.expert_cost_text import expert_cost_facts, holds_for
from autofit.output.text.spending_table import spent_rows
from autofit.output.text.trial_row import brief_params, command_line
from autofit.text_format import (
    UNKNOWN,
    duration,
    estimate,
    gain_sentence,
    headroom,
    mib,
    number,
    one_line,
    param,
)
from autofit.trial.device import HOST_NAME

Row = tuple[str, ...]
# Of llama-server, unless it is told another.
PORT = 8080
_METRICS = (
    ("request_s", "seconds per request"),
    ("pp_per_s", "prompt tokens/s"),
    ("tg_per_s", "generated tokens/s"),
    ("ttft_s", "seconds to first token"),
)
BOUNDARY_HEAD: Row = ("layout", "KV type", "ubatch", "fits", "fails", "as", "proven")
CLIFF_HEAD: Row = ("parameter", "step", "loss", "layout", "KV type")
FRONT_HEAD: Row = ("prompt tokens/s", "generated tokens/s", "s/request", "headroom", "settings")
METRIC_HEAD: Row = ("", "baseline", "winner")


@dataclass(frozen=True, slots=True)
class Answer:
    """The conclusion of a tune: a headline, then facts, each table ready to be drawn.

    `command` starts the winner in a POSIX shell.
    """

    headline: str
    facts: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    metrics: tuple[Row, ...] = ()
    boundary: tuple[Row, ...] = ()
    cliffs: tuple[Row, ...] = ()
    front: tuple[Row, ...] = ()
    spent: tuple[Row, ...] = ()
    notes: tuple[str, ...] = field(default=())
    command: str = ""


def answer(result: Mapping[str, Any] | None, folder: Path | None = None) -> Answer:
    """The conclusion in words; None is a tune in `folder` that has not ended."""
    if result is None:
        study = one_line(shlex.quote(str(folder))) if folder else "STUDY"
        return Answer(f"not finished: go on with the same command and --study {study} --resume")
    if "because" in result:  # of a comparison, which has its words with it
        headline, *others = (one_line(words) for words in result["words"])
        told = (*(("", words) for words in others), *_facts(result, {}))
        return Answer(headline, told, notes=tuple(map(one_line, result.get("notes") or ())))
    winner: Mapping[str, Any] = result.get("winner") or {}
    baseline: Mapping[str, Any] = result.get("baseline") or {}
    return Answer(
        headline=_headline(result, winner),
        facts=tuple(_facts(result, winner)),
        settings=tuple(
            (one_line(name), one_line(param(value)))
            for name, value in (winner.get("params") or {}).items()
        ),
        metrics=tuple(_metrics(baseline.get("estimates") or {}, winner.get("estimates") or {})),
        boundary=tuple(_boundary_row(row) for row in result.get("boundary") or ()),
        cliffs=tuple(_cliff_row(row) for row in result.get("cliffs") or ()),
        front=tuple(_front_row(row) for row in result.get("pareto") or ()),
        spent=spent_rows(result),
        notes=tuple(one_line(note) for note in result.get("notes") or ()),
        command=_command(winner),
    )


def _command(winner: Mapping[str, Any]) -> str:
    if not winner.get("argv"):
        return ""
    return one_line(command_line(winner["argv"], winner.get("env") or {}, port=PORT))


def _headline(result: Mapping[str, Any], winner: Mapping[str, Any]) -> str:
    if "winner" not in result:  # a probe looks for none
        rows = result.get("boundary") or ()
        proven = sum(bool(row.get("proven")) for row in rows)
        is_cut_off = result.get("ended_by") == "budget"
        told = f"{proven} of {len(rows)} boundaries proven"
        return told + ", then the budget was spent" * is_cut_off
    if not winner:
        return "nothing was proven: no settings to recommend"
    sentence = gain_sentence(result.get("gain"), tie=bool(result.get("tie")))
    proof = "proven at full context" if winner.get("proven") else "NOT proven at full context"
    return f"{sentence}; {proof}"


def _facts(result: Mapping[str, Any], winner: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = []
    if winner:
        free_mib = winner.get("free_mib") or {}
        if winner.get("taken_mib"):
            facts.append(("takes at the peak", headroom(winner["taken_mib"])))
        facts.append(("headroom at the peak", headroom(free_mib)))
        survives = ", ".join(
            f"another {mib(free)} taken on {one_line(name)}"
            for name, free in free_mib.items()
            if free is not None and name != HOST_NAME
        )
        if survives:
            facts.append(("would survive", survives))
        facts += expert_cost_facts(result)
    facts += _spent(result)
    if result.get("conditions"):
        facts.append(("machine meanwhile", meanwhile(result["conditions"])))
    failed = (result.get("baseline") or {}).get("outcome")
    if isinstance(failed, Mapping) and failed.get("kind") != "completed":
        text = f"{failed.get('kind', UNKNOWN)}: {failed.get('evidence', '')}"
        facts.append(("baseline failed", one_line(text)))
    if result.get("preset"):
        facts.append(("preset", one_line(result["preset"])))
    if result.get("pareto"):
        facts.append(("preset is for", "the fewest seconds per request; others are listed"))
    return facts


def _spent(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What launches and time went to, and why no more of them."""
    outcomes = result.get("outcomes") or {}
    phases = result.get("launches_by_phase") or {}
    facts = []
    if "launches" in result:
        counted = [f"{phase} {count}" for phase, count in phases.items() if count]
        counted += _without_outcome(
            result["launches"], sum(outcomes.values()) if outcomes else None
        )
        by_phase = f" ({', '.join(counted)})" if counted else ""
        facts.append(("launches", f"{result['launches']}{by_phase}"))
    if outcomes:
        told = (f"{kind.replace('_', ' ')} {count}" for kind, count in outcomes.items() if count)
        facts.append(("outcomes", one_line(", ".join(told))))
    if result.get("seconds") is not None:
        # The table of what was spent tells it by phase, where there is one.
        spent = {} if result.get("spent") else result.get("seconds_by_phase") or {}
        by_phase = ", ".join(f"{phase} {duration(s)}" for phase, s in spent.items() if s)
        facts.append(("time", duration(result["seconds"]) + f" ({by_phase})" * bool(by_phase)))
    if result.get("search"):
        facts.append(("search ended", _ending(result["search"])))
    return facts


def _without_outcome(launches: int, ended: int | None) -> list[str]:
    """Why there are more or fewer launches than outcomes; nothing where there are as many."""
    if ended is None or ended == launches:
        return []
    if ended < launches:
        return [f"cut off by a stop {launches - ended}"]
    return [f"of these refused before a start {ended - launches}"]


def _ending(search: Mapping[str, Any]) -> str:
    """Why no more was launched, and what one more launch was expected to bring."""
    gain, least = search.get("expected_gain"), search.get("least_gain") or 0.0
    if search.get("ended_by") == "space":
        return "nothing that was left promised any gain"
    expected = "" if gain is None else f"one more launch was expected to bring {gain:.2%}"
    if search.get("ended_by") == "budget":
        return f"by the budget{'; ' * bool(expected)}{expected}"
    if search.get("ended_by") == "stalled":
        return f"the last launches brought nothing better{'; ' * bool(expected)}{expected}"
    return f"{expected}, less than the {least:.2%} that a launch must promise"


def _front_row(row: Mapping[str, Any]) -> Row:
    settings = brief_params(row.get("params") or {}) or "the runtime's own choice"
    return (
        number(row.get("pp_per_s")),
        number(row.get("tg_per_s")),
        number(row.get("request_s")),
        one_line(headroom(row.get("free_mib") or {})),
        one_line(settings + " (the preset)" * bool(row.get("is_preset"))),
    )


def meanwhile(host: Mapping[str, Any]) -> str:
    """How quiet the machine was while launches were measured."""
    if host["words"]:
        return one_line(f"NOT QUIET: {'; '.join(host['words'])}")
    others = host.get("others_cores")
    if others is None:
        return "nothing disturbed it, as far as could be told"
    return f"quiet: others kept at most {others['high']:.1f} of {host['cores']} cores busy"


def _metrics(baseline: Mapping[str, Any], winner: Mapping[str, Any]) -> list[Row]:
    return [
        (words, estimate(baseline.get(name)), estimate(winner.get(name)))
        for name, words in _METRICS
        if baseline.get(name) or winner.get(name)
    ]


def _boundary_row(row: Mapping[str, Any]) -> Row:
    # A probe tells only what it launched, one side or none where it is not proven.
    guessed = "" if "launches" in row else f" ({row.get('source') or 'estimate'})"
    proven = "yes" if row.get("proven") else f"no{guessed}"
    cells = (
        row.get("layout"),
        row.get("cache_type"),
        holds_for(row),
        _layers(row, "fits"),
        _layers(row, "fails"),
        _kind(row.get("outcome")),
        proven,
    )
    return tuple(one_line("" if cell is None else cell) for cell in cells)


def _layers(row: Mapping[str, Any], side: str) -> str:
    """One side of a boundary; of a probe that left it open, none is not known to be none."""
    if row.get(side) is not None:
        return f"{row[side]} layer{'s' * (row[side] != 1)}"
    return UNKNOWN if "launches" in row and not row.get("proven") else "none"


def _kind(outcome: object) -> str:
    kind = outcome.get("kind") if isinstance(outcome, Mapping) else outcome
    return str(kind or "").replace("_", " ")


def _cliff_row(row: Mapping[str, Any]) -> Row:
    ratio, low, high = row.get("ratio"), row.get("low"), row.get("high")
    loss = f"{row.get('metric')} times {number(ratio)}"
    if low is not None and high is not None:
        loss += f" ({number(low)} to {number(high)})"
    step = f"{row.get('from')} to {row.get('to')}"
    cells = (row.get("param"), step, loss, row.get("layout"), row.get("cache_type"))
    return tuple(one_line("" if cell is None else cell) for cell in cells)
