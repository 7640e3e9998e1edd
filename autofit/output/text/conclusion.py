"""The conclusion of a study as texts and rows of tables, the same on screen and in reports.

It is made from the document that `tune --json` prints. Keys that a failed or unfinished tune
lacks count as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.output.text.result_table import (
    ResultTable,
    finding_tables,
    metric_table,
    spent_table,
)
from autofit.output.text.trial_row import OWN_PARAMS, command_line
from autofit.statistics.stopping_rule import StoppingRule
from autofit.study.study_folder import Study
from autofit.text_format import (
    UNKNOWN,
    as_fast,
    duration,
    headroom,
    is_undecided,
    mib,
    one_line,
    param,
    speedup_text,
)

_NO_TABLE = ResultTable()
# The default of llama-server.
PORT = 8080
# Smaller differences between two times are not worth a number.
_EQUAL_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion of a study: a headline, then facts, then tables.

    Attributes:
        facts: what the winner needs, as names and texts.
        expert_facts: memory and speedup of each setting for experts in system RAM.
        effort: launches and time that were spent, and why the search ended.
        warnings: what makes the result uncertain, each on one line.
        notes: the remarks that the run made.
        command: starts the winner in a POSIX shell; empty without a winner.
    """

    headline: str
    facts: tuple[tuple[str, str], ...] = ()
    expert_facts: tuple[tuple[str, str], ...] = ()
    effort: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    metrics: ResultTable = _NO_TABLE
    tables: tuple[ResultTable, ...] = ()
    spent: ResultTable = _NO_TABLE
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""


def make_conclusion(result: Mapping[str, Any]) -> Conclusion:
    """Return the conclusion of a result."""
    notes = tuple(one_line(note) for note in result.get("notes") or ())
    warnings, effort = tuple(_warnings(result)), tuple(_effort(result))
    if "because" in result:  # a comparison, which has its own messages
        headline, *others = (one_line(message) for message in result["words"])
        facts = (*(("", message) for message in others), *_facts(result, {}))
        return Conclusion(headline, facts, effort=effort, warnings=warnings, notes=notes)
    winner: Mapping[str, Any] = result.get("winner") or {}
    baseline: Mapping[str, Any] = result.get("baseline") or {}
    return Conclusion(
        headline=_headline(result, winner),
        facts=tuple(_facts(result, winner)),
        expert_facts=tuple(_expert_facts(result)) if winner else (),
        effort=effort,
        settings=tuple(
            (one_line(name), one_line(param(value)))
            for name, value in (winner.get("params") or {}).items()
        ),
        metrics=metric_table(baseline.get("estimates") or {}, winner.get("estimates") or {}),
        tables=finding_tables(result),
        spent=spent_table(result),
        warnings=warnings,
        notes=notes,
        command=_command(winner),
    )


def _command(winner: Mapping[str, Any]) -> str:
    if not winner.get("argv"):
        return ""
    return one_line(command_line(winner["argv"], winner.get("env") or {}, port=PORT))


def _headline(result: Mapping[str, Any], winner: Mapping[str, Any]) -> str:
    if "winner" not in result:  # a probe, which recommends nothing
        rows = result.get("boundary") or ()
        proven = sum(bool(row.get("proven")) for row in rows)
        is_cut_off = result.get("ended_by") == "budget"
        return f"{proven} of {len(rows)} boundaries proven" + "; budget used up" * is_cut_off
    if not winner:
        return "Nothing was proven: no settings to recommend"
    proof = "proven at full context" if winner.get("proven") else "NOT proven at full context"
    return f"{describe_speedup(result)}; {proof}"


def describe_speedup(result: Mapping[str, Any]) -> str:
    """Return the speedup of a tune's winner, or a sentence if its baseline won."""
    gain = result.get("gain") or {}
    if not all(gain.get(key) == 1.0 for key in ("median", "low", "high")):
        return speedup_text(result.get("gain"), tie=bool(result.get("tie")))
    is_own = has_own_settings(result)
    baseline, verb = ("runtime's own settings", "are") if is_own else ("baseline", "is")
    if gain.get("n"):
        return f"The {baseline} {verb} the fastest found"
    phases = result.get("launches_by_phase")
    if phases and not any(phases.get(phase) for phase in ("boundary", "search", "confirm")):
        return f"Budget too short: only the {baseline} {'were' if is_own else 'was'} tested"
    return f"The {baseline} {verb} all that can be recommended"


def has_own_settings(result: Mapping[str, Any]) -> bool:
    """Return whether the baseline is the runtime's own choice, not a user's command."""
    return OWN_PARAMS.issuperset((result.get("baseline") or {}).get("params") or {})


def _facts(result: Mapping[str, Any], winner: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if winner:
        if winner.get("taken_mib"):
            yield "memory at the peak", headroom(winner["taken_mib"])
        yield "headroom at the peak", headroom(winner.get("free_mib") or {})
    conditions = result.get("conditions") or {}
    if conditions and not conditions.get("words"):
        yield "conditions", conditions_text(conditions)
    if result.get("preset"):
        yield "preset", one_line(result["preset"])
    if result.get("pareto"):
        yield "preset is for", "the fewest seconds per request; the table lists others"


def conditions_text(conditions: Mapping[str, Any]) -> str:
    """Return whether the machine was idle while launches were measured."""
    if conditions["words"]:
        was_busy = "busy" if conditions.get("busy_launches") else "not at full speed"
        return one_line(f"Warning: the machine was {was_busy}: {'; '.join(conditions['words'])}")
    others = conditions.get("others_cores")
    if others is None:
        return "The machine was idle"
    most, cores = others["high"], conditions.get("cores", 0)
    return f"The machine was idle: other processes used at most {most:.1f} of {cores} cores"


def _warnings(result: Mapping[str, Any]) -> Iterator[str]:
    failed = (result.get("baseline") or {}).get("outcome")
    if isinstance(failed, Mapping) and failed.get("kind") != "completed":
        kind = str(failed.get("kind", UNKNOWN)).replace("_", " ")
        yield one_line(f"The baseline failed: {kind}: {failed.get('evidence', '')}")
    if not result.get("tie") and is_undecided(result.get("gain")):
        rounds = (result.get("confirmation") or {}).get("max_rounds", 0)
        is_limited = rounds < StoppingRule().max_rounds  # by the budget
        advice = "; continue with --resume and a larger --budget to decide" if is_limited else ""
        yield f"The preset has the candidate{advice}"
    conditions = result.get("conditions") or {}
    if conditions.get("words"):
        yield conditions_text(conditions)


def _effort(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the launches and the time that were spent, and why the search ended."""
    outcomes = result.get("outcomes") or {}
    phases = result.get("launches_by_phase") or {}
    if "launches" in result:
        counts = [f"{phase} {count}" for phase, count in phases.items() if count]
        if outcomes:
            counts += _without_outcome(result["launches"] - sum(outcomes.values()))
        by_phase = f" ({', '.join(counts)})" if counts else ""
        yield "launches", f"{result['launches']}{by_phase}"
    if outcomes:
        kinds = (f"{kind.replace('_', ' ')} {count}" for kind, count in outcomes.items() if count)
        yield "outcomes", one_line(", ".join(kinds))
    if result.get("seconds") is not None:
        # The table of the time spent, if there is one, has the time by phase.
        spent = {} if result.get("spent") else result.get("seconds_by_phase") or {}
        by_phase = ", ".join(f"{phase} {duration(s)}" for phase, s in spent.items() if s)
        yield "time", duration(result["seconds"]) + f" ({by_phase})" * bool(by_phase)
    if result.get("search"):
        yield "search ended", _search_ending(result["search"])


def _without_outcome(count: int) -> list[str]:
    """Return the reason why `count` launches have no outcome, or are missing if negative."""
    if not count:
        return []
    return [f"{count} cut off by a stop" if count > 0 else f"{-count} rejected before launch"]


def _search_ending(search: Mapping[str, Any]) -> str:
    ended_by, gain = search.get("ended_by"), search.get("expected_gain")
    if ended_by == "space":
        return "no candidate was left"
    if ended_by == "stalled":
        rest = "" if gain is None else f" ({gain:.1%} of the time)"
        return f"the expected gain{rest} was not worth one more launch"
    if ended_by == "budget":
        more = "" if gain is None else f"; one more launch might save {gain:.1%} of the time"
        return f"--budget or --max-launches was reached{more}"
    return "no further gain expected"


def _expert_facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield memory and speedup of each setting for experts in system RAM."""
    for row in result.get("expert_memory") or ():
        yield one_line(f"{row['param']} {param(row['value'])}"), one_line(_expert_text(row))


def _expert_text(row: Mapping[str, Any]) -> str:
    ratio, launches = row.get("time_ratio"), row.get("launches") or 0
    if row.get("source") is None:
        if not launches:
            return "off; not measured"
        tried = "1 launch" if launches == 1 else f"the fastest of {launches} launches"
        return f"off: {tried} with it {_relative_speed(ratio, 'was')}"
    memory = _expert_memory(row)
    return memory if ratio is None else f"{memory}; {_relative_speed(ratio)} as without it"


def _relative_speed(time_ratio: float | None, verb: str = "") -> str:
    if time_ratio is None:
        return "cannot be compared"
    is_equal = abs(time_ratio - 1) < _EQUAL_SHARE
    return f"{verb} {'equally fast' if is_equal else as_fast(1 / time_ratio)}".strip()


def _expert_memory(row: Mapping[str, Any]) -> str:
    amounts = row.get("mib") or {}
    asked, taken = row.get("slots_asked"), row.get("slots_taken")
    if not amounts:
        if row.get("source") == "log":
            return "needs no memory: the runtime turned it off"
        return "needs no memory" + ": no batch was large enough" * bool(asked)
    where = ", ".join(f"{mib(amount)} on {one_line(name)}" for name, amount in amounts.items())
    fewer = f", {taken} of {asked} slots" if asked and taken is not None and taken < asked else ""
    return where + fewer + " (estimated)" * (row.get("source") == "estimate")


def caveats(study: Study) -> list[str]:
    """Return what a reader must know before relying on a study."""
    return [
        *_conclusion_caveats(study),
        *(make_conclusion(study.result).notes if study.result else ()),
        *_folder_caveats(study),
        *map(one_line, study.notices),
    ]


def _conclusion_caveats(study: Study) -> Iterator[str]:
    result, header = study.result, study.header
    if result is None or "winner" not in result:
        return
    if result["winner"]:
        workload = header.workload
        yield one_line(
            f"measured for the workload {workload.name} at {workload.context} tokens of context "
            "on this machine and build; other settings may be best for others"
        )
    gain = result.get("gain") or {}
    if gain.get("median") is not None and gain.get("low") is None:
        yield "a speedup from fewer than 3 rounds has no interval: use a larger --budget"
    open_count = sum(not row.get("proven") for row in result.get("boundary") or ())
    if open_count:
        boundaries = "1 boundary is" if open_count == 1 else f"{open_count} boundaries are"
        yield f"{boundaries} partly estimated; `autofit probe` launches both sides"
    given = header.options.get("devices_mib") or {}
    limits = {name: amount for name, amount in given.items() if amount is not None}
    if limits:
        amounts = ", ".join(f"{name} {mib(amount)}" for name, amount in limits.items())
        yield one_line(f"--device limited the memory to {amounts}")


def _folder_caveats(study: Study) -> Iterator[str]:
    skipped, cut_off = len(study.skipped()), study.cut_off()
    if skipped:
        yield skipped_text(skipped)
    if cut_off:
        numbers = ", ".join(f"#{number}" for number in cut_off)
        yield f"launches that a stop cut off are no trials: {numbers}"


def skipped_text(count: int) -> str:
    """Return how many candidates needed no launch."""
    candidates = "1 candidate was" if count == 1 else f"{count} candidates were"
    return f"{candidates} ruled out without a launch"
