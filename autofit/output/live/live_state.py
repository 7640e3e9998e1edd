"""What the live view shows, replaced as a whole by each event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autofit.model.sizes.kv_cache import kv_types
from autofit.output.layer_map import host_layers, sends_layers
from autofit.output.live.strip import Strip
from autofit.session.events import (
    BoundaryMoved,
    CandidateSkipped,
    Event,
    Finished,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    PhaseStarted,
    RoundEnded,
    StageStarted,
)
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.trial import Trial

_Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LiveState:
    """A tune as far as it has come.

    `stages` are those of the launch under way that are over, with their seconds; `strips`
    are by layout and KV type, the one that changed last at the end. `numbers` tell by
    candidate its first launch.
    """

    phase: str = ""
    max_launches: int | None = None
    launches_in_phase: int = 0
    launch: LaunchStarted | None = None
    stage: str = ""
    stage_began_s: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    incumbent: Incumbent | None = None
    round: RoundEnded | None = None
    skipped: int = 0
    layers: int | None = None
    strips: Mapping[_Line, Strip] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    def after(self, event: Event, now_s: float) -> LiveState:
        """The state after an event at that time."""
        if isinstance(event, PhaseStarted):
            return replace(
                self, phase=event.phase, max_launches=event.max_launches, launches_in_phase=0
            )
        if isinstance(event, LaunchStarted):
            return replace(
                self,
                launch=event,
                stage="",
                stages={},
                stage_began_s=now_s,
                launches_in_phase=self.launches_in_phase + 1,
            )
        if isinstance(event, StageStarted):
            return replace(
                self, stage=event.stage, stage_began_s=now_s, stages=self._stages(now_s)
            )
        if isinstance(event, LaunchEnded):
            return replace(self._with_outcome(event.trial), launch=None, stage="")
        if isinstance(event, Finished):
            return replace(self, launch=None, stage="")
        if isinstance(event, CandidateSkipped):
            return replace(self, skipped=self.skipped + 1)
        if isinstance(event, Incumbent):
            return replace(self._with_best(event), incumbent=event)
        if isinstance(event, RoundEnded):
            return replace(self, round=event)
        if isinstance(event, BoundaryMoved):
            line = (event.layout, event.cache_type)
            strip = _strip(self.strips, line).closed_in(event.fits, event.fails)
            return replace(self, strips=_changed(self.strips, line, strip))
        return self

    def last_layers(self) -> int:
        """The most host expert layers that can be, as far as is known."""
        tried = [n for strip in self.strips.values() for n in strip.marks]
        return self.layers if self.layers is not None else max(tried, default=0)

    def _stages(self, now_s: float) -> dict[str, float]:
        if not self.stage:
            return dict(self.stages)
        spent_s = self.stages.get(self.stage, 0.0) + now_s - self.stage_began_s
        return {**self.stages, self.stage: spent_s}

    def _with_outcome(self, trial: Trial) -> LiveState:
        told = trial.measurement.applied.get("layers") if trial.measurement else None
        model_layers = told if isinstance(told, int) else self.layers
        strips = self.strips
        layers = host_layers(trial.candidate, model_layers)
        line = trial.layout, kv_types(trial.candidate)[0]
        if layers is not None and (sends_layers(trial.candidate) or line in strips):
            is_full = lacks_device_memory(trial.outcome)  # fewer host layers would be, too
            mark = "x" if is_full else "o" if trial.is_completed else "!"
            strips = _changed(strips, line, _strip(strips, line).marked(layers, mark))
        numbers = {trial.candidate.key: trial.number, **self.numbers}
        return replace(self, layers=model_layers, strips=strips, numbers=numbers)

    def _with_best(self, event: Incumbent) -> LiveState:
        strips = {line: strip.without_best() for line, strip in self.strips.items()}
        layers = host_layers(event.candidate, self.layers)
        if layers is not None and strips:
            line = list(strips)[-1]  # of the launch that has just ended
            strips = _changed(strips, line, strips[line].marked(layers, "*"))
        return replace(self, strips=strips)


def _strip(strips: Mapping[_Line, Strip], line: _Line) -> Strip:
    return strips.get(line) or Strip(", ".join(part for part in line if part))


def _changed(strips: Mapping[_Line, Strip], line: _Line, strip: Strip) -> dict[_Line, Strip]:
    """The strips with one that changed, which is the last now."""
    others = {known: other for known, other in strips.items() if known != line}
    return {**others, line: strip}
