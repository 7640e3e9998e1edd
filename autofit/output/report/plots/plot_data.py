"""What all plots are drawn from: a study's trials, and how they are named and grouped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autofit.output.layer_map import host_layers, sends_layers
from autofit.output.report.plots.figure import lines
from autofit.output.text.trial_row import brief_params, outcome_text
from autofit.text_format import METRIC_WORDS, number
from autofit.trial.candidate import Candidate
from autofit.trial.metric import METRICS, Metric, cost, median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload


@dataclass(frozen=True)  # no slots: what is costly is kept
class PlotData:
    """A study as plots see it; `result` is None for one that has not ended."""

    trials: Sequence[Trial]
    workload: Workload
    objective: str
    result: Mapping[str, Any] | None

    @property
    def metric(self) -> Metric:
        """What was made best."""
        return next((metric for metric in METRICS if metric == self.objective), "request_s")

    @property
    def metric_words(self) -> str:
        """The metric with its unit."""
        return METRIC_WORDS[self.metric]

    @property
    def is_comparison(self) -> bool:
        """Whether two sides were compared, rather than a best one searched."""
        return "because" in (self.result or {})

    @cached_property
    def winner(self) -> Candidate | None:
        """The candidate that won, None where none did."""
        params = ((self.result or {}).get("winner") or {}).get("params")
        return Candidate(params) if params else None

    @cached_property
    def layers(self) -> int | None:
        """The model's layers as some launch told them."""
        for trial in self.trials:
            told = trial.measurement.applied.get("layers") if trial.measurement else None
            if isinstance(told, int) and 0 < told < 1000:  # noqa: PLR2004 - no model has more
                return told
        return None

    @cached_property
    def _sends_layers(self) -> bool:
        return any(sends_layers(trial.candidate) for trial in self.trials)

    @cached_property
    def hosted(self) -> str:
        """What is sent to system RAM: experts, or of a dense model the feed-forwards."""
        is_dense = any(_sends_feed_forwards(trial.candidate) for trial in self.trials)
        return "feed-forwards" if is_dense else "experts"

    @property
    def host_words(self) -> str:
        """Layers of which something is in system RAM, as the project calls them."""
        return "host expert layers" if self.hosted == "experts" else "host layers"

    @property
    def host_axis(self) -> str:
        """The title of an axis of these layers."""
        return f"{self.host_words} ({self.hosted} in system RAM)"

    def value(self, trial: Trial, metric: Metric | None = None) -> float | None:
        """What a launch that ended well measured."""
        if not trial.is_completed:
            return None
        return median_metric(trial.measurement, self.workload, metric or self.metric)

    def measured(self, trials: Iterable[Trial] | None = None) -> list[tuple[Trial, float]]:
        """The launches that measured the metric, with what they measured."""
        pairs = (
            (trial, self.value(trial)) for trial in (self.trials if trials is None else trials)
        )
        return [(trial, value) for trial, value in pairs if value is not None]

    def best(self, measured: Sequence[tuple[Trial, float]]) -> tuple[Trial, float]:
        """The best of some launches."""
        return min(measured, key=lambda pair: cost(pair[1], self.metric))

    def host_layers(self, trial: Trial) -> int | None:
        """In how many layers a launch kept experts in system RAM, None where it left that.

        Nor is it told of a study in which no launch sent any there: it does not vary.
        """
        return host_layers(trial.candidate, self.layers) if self._sends_layers else None

    def shown_pair(self) -> list[tuple[str, Trial]]:
        """The baseline and the winner (else the best so far), each by its last good launch.

        Of a comparison, its sides.
        """
        pair = []
        if self.is_comparison:
            sides = {t.purpose.side: t for t in self.trials if t.is_completed and t.purpose.side}
            return sorted(sides.items())
        baseline = _last(t for t in self.trials if t.phase == "baseline")
        if baseline is not None:
            pair.append(("baseline", baseline))
        if self.winner is not None:
            # Its headroom is that of the proof; launches for its answers come after it.
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
        """All launches of a trial's candidate, or side of a comparison, that ended well."""
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
        """What a launch's candidate is in the study: baseline, winner, or empty."""
        return self._roles.get(trial.candidate.key, "")


def _sends_feed_forwards(candidate: Candidate) -> bool:
    rules = candidate.get_str("override_tensor", "")
    return "n_cpu_ffn" in candidate.params or ("ffn" in rules and "exps" not in rules)


def _is_baseline(trial: Trial) -> bool:
    return trial.phase == "baseline"


def group(trial: Trial) -> str:
    """Launches whose speeds lie on one curve: the same layout and KV type."""
    return f"{trial.layout or 'launch'}, KV {trial.candidate.get_str('cache_type_k', 'f16')}"


def hover(trial: Trial, value: str = "") -> str:
    """A launch as a hover label."""
    return lines(
        f"#{trial.number} {trial.phase} {trial.layout}",
        brief_params(trial.candidate.params) or "runtime's defaults",
        value,
        "" if trial.is_completed else f"{outcome_text(trial.outcome)}: {trial.outcome.evidence}",
    )


def launch_numbers(trials: Sequence[Trial], *, most: int = 8) -> str:
    """Launches by number for a sentence: `#3, #8 and 12 more`."""
    named = ", ".join(f"#{trial.number}" for trial in trials[:most])
    return named + (f" and {len(trials) - most} more" if len(trials) > most else "")


def metric_text(value: float, metric_words: str) -> str:
    """A value with its unit."""
    return f"{number(value)} {metric_words}"


def _last(trials: Iterable[Trial]) -> Trial | None:
    completed = [trial for trial in trials if trial.is_completed]
    return completed[-1] if completed else None
