"""The data of all plots: a study's trials, with their names and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autofit.output.layer_map import host_layers, places_host_layers
from autofit.output.report.plots.figure import lines
from autofit.output.text.trial_row import brief_params, outcome_text
from autofit.text_format import METRIC_WORDS, number
from autofit.trial.candidate import Candidate
from autofit.trial.metric import METRICS, Metric, cost, median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

_MOST_NAMED = 8


@dataclass(frozen=True)  # no slots: cached_property needs a dict
class PlotData:
    """A study for plots; `result` is None if the study has not ended."""

    trials: Sequence[Trial]
    workload: Workload
    objective: str
    result: Mapping[str, Any] | None

    @property
    def metric(self) -> Metric:
        """The objective as a metric."""
        return next((metric for metric in METRICS if metric == self.objective), "request_s")

    @property
    def metric_words(self) -> str:
        """The metric with its unit."""
        return METRIC_WORDS[self.metric]

    @property
    def is_comparison(self) -> bool:
        """True for a comparison of two sides, false for a tune or probe."""
        return "because" in (self.result or {})

    @cached_property
    def winner(self) -> Candidate | None:
        """The winner, None without one."""
        params = ((self.result or {}).get("winner") or {}).get("params")
        return Candidate(params) if params else None

    @cached_property
    def layers(self) -> int | None:
        """The model's number of layers, from the first launch that reported it."""
        for trial in self.trials:
            count = trial.measurement.applied.get("layers") if trial.measurement else None
            if isinstance(count, int) and 0 < count < 1000:  # noqa: PLR2004 - no model has more
                return count
        return None

    @cached_property
    def _places_host_layers(self) -> bool:
        return any(places_host_layers(trial.candidate) for trial in self.trials)

    @cached_property
    def hosted(self) -> str:
        """The part of a layer that can be in system RAM: its experts, or its feed-forwards."""
        is_dense = any(_sends_feed_forwards(trial.candidate) for trial in self.trials)
        return "feed-forwards" if is_dense else "experts"

    @property
    def host_words(self) -> str:
        """The name of layers that have this part in system RAM."""
        return "host expert layers" if self.hosted == "experts" else "host layers"

    @property
    def host_axis(self) -> str:
        """The title of an axis of these layers."""
        return f"{self.host_words} ({self.hosted} in system RAM)"

    def value(self, trial: Trial, metric: Metric | None = None) -> float | None:
        """Return the metric of a completed launch, or None for any other."""
        if not trial.is_completed:
            return None
        return median_metric(trial.measurement, self.workload, metric or self.metric)

    def measured(self, trials: Iterable[Trial] | None = None) -> list[tuple[Trial, float]]:
        """Return the launches that measured the metric, with its value."""
        pairs = (
            (trial, self.value(trial)) for trial in (self.trials if trials is None else trials)
        )
        return [(trial, value) for trial, value in pairs if value is not None]

    def best(self, measured: Sequence[tuple[Trial, float]]) -> tuple[Trial, float]:
        """Return the best of some launches."""
        return min(measured, key=lambda pair: cost(pair[1], self.metric))

    def host_layers(self, trial: Trial) -> int | None:
        """Return the number of host layers of a launch.

        Return None if the runtime decided it, or if no launch of the study has host layers.
        """
        return host_layers(trial.candidate, self.layers) if self._places_host_layers else None

    def shown_pair(self) -> list[tuple[str, Trial]]:
        """Return the two launches that a plot compares, with their roles.

        These are the last completed launches of baseline and winner. Without a winner the best
        so far replaces it. A comparison has its two sides.
        """
        pair = []
        if self.is_comparison:
            sides = {t.purpose.side: t for t in self.trials if t.is_completed and t.purpose.side}
            return sorted(sides.items())
        baseline = _last(t for t in self.trials if t.phase == "baseline")
        if baseline is not None:
            pair.append(("baseline", baseline))
        if self.winner is not None:
            # The proof has the headroom to show; launches for answers come after it.
            proof = ((self.result or {}).get("winner") or {}).get("trial")
            own = [t for t in self.trials if t.candidate == self.winner]
            winner = next((t for t in own if t.number == proof), None) or _last(own)
            if winner is not None:
                pair.append(("winner", winner))
        else:
            others = self.measured(t for t in self.trials if t.phase != "baseline")
            if others:
                pair.append(("best so far", self.best(others)[0]))
        return pair

    def of_candidate(self, trial: Trial) -> list[Trial]:
        """Return the completed launches of a trial's candidate, or of its side of a comparison."""
        return [
            t
            for t in self.trials
            if t.candidate == trial.candidate
            and t.is_completed
            and (t.purpose.side == trial.purpose.side or not self.is_comparison)
        ]

    @cached_property
    def _roles(self) -> Mapping[str, str]:
        roles = {trial.candidate.key: "baseline" for trial in self.trials if _is_baseline(trial)}
        return {**roles, self.winner.key: "winner"} if self.winner else roles

    def role(self, trial: Trial) -> str:
        """Return `baseline`, `winner` or an empty text for a launch's candidate."""
        return self._roles.get(trial.candidate.key, "")


def _sends_feed_forwards(candidate: Candidate) -> bool:
    rules = candidate.get_str("override_tensor", "")
    return "n_cpu_ffn" in candidate.params or ("ffn" in rules and "exps" not in rules)


def _is_baseline(trial: Trial) -> bool:
    return trial.phase == "baseline"


def group(trial: Trial) -> str:
    """Return the name of a launch's curve: its layout and KV type."""
    return f"{trial.layout or 'launch'}, KV {trial.candidate.get_str('cache_type_k', 'f16')}"


def hover(trial: Trial, value: str = "") -> str:
    """Return the hover label of a launch."""
    return lines(
        f"#{trial.number} {trial.phase} {trial.layout}",
        brief_params(trial.candidate.params) or "runtime's defaults",
        value,
        "" if trial.is_completed else f"{outcome_text(trial.outcome)}: {trial.outcome.evidence}",
    )


def launch_numbers(trials: Sequence[Trial]) -> str:
    """Return launches by number for a sentence: `#3, #8 and 12 more`."""
    named = ", ".join(f"#{trial.number}" for trial in trials[:_MOST_NAMED])
    more = len(trials) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def by_outcome(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Return launches by the kind of their outcome, in the order of the kinds' names."""
    kinds: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.outcome.kind, trial.number)):
        kinds.setdefault(trial.outcome.kind, []).append(trial)
    return kinds


def outcome_counts(trials: Iterable[Trial]) -> str:
    """Return how many launches had each outcome: `4 out of memory, 1 spilled`."""
    counts = ((kind, len(own)) for kind, own in by_outcome(trials).items())
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts)


def metric_text(value: float, metric_words: str) -> str:
    """Return a value with its unit."""
    return f"{number(value)} {metric_words}"


def _last(trials: Iterable[Trial]) -> Trial | None:
    completed = [trial for trial in trials if trial.is_completed]
    return completed[-1] if completed else None
