"""The state of the live view: phase, launch, strips of host layers, memory of the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rich.text import Text

from autofit.model.sizes.kv_cache import kv_types
from autofit.output.layer_map import host_layers, places_host_layers
from autofit.output.text.trial_row import OWN_PARAMS
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
from autofit.text_format import mib, one_line
from autofit.trial.device import HOST_NAME
from autofit.trial.measurement import MemoryReading
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.trial import Trial

_Line = tuple[str, str]

LEGEND = "x no fit  ! error  o ran  * best  -= implied  . open"
_STYLES = {
    "x": "bold red",
    "!": "bold magenta",
    "o": "bold green",
    "*": "bold reverse green",
    "-": "dim red",
    "=": "dim green",
    ".": "",
}
# If the launches of one number of layers differ, the better outcome is shown.
_RANK = {"!": 0, "x": 1, "o": 2, "*": 3}
_FULL = 0.97
_NEARLY = 0.9
_TEXT_COLUMNS = 30


@dataclass(frozen=True, slots=True)
class Strip:
    """One character for each number of host expert layers, for one layout and KV type.

        0 ---------x..o*oo===o==== 40

    `x` did not fit, `!` failed otherwise, `o` ran, `*` is the best so far. `-` has fewer layers
    than a number that did not fit, `=` more than one that ran. `.` is not known.
    """

    name: str
    marks: Mapping[int, str] = field(default_factory=dict)
    fits: int | None = None
    fails: int | None = None

    def marked(self, layers: int, mark: str) -> Strip:
        """Return the strip with the outcome of a launch."""
        before = self.marks.get(layers)
        better = mark if before is None or _RANK[mark] > _RANK[before] else before
        return replace(self, marks={**self.marks, layers: better})

    def without_best(self) -> Strip:
        """Return the strip with its best as one that ran."""
        return replace(self, marks={n: "o" if m == "*" else m for n, m in self.marks.items()})

    def bounded(self, fits: int | None, fails: int | None) -> Strip:
        """Return the strip with both known sides of its boundary."""
        return replace(self, fits=fits, fails=fails)

    def character(self, layers: int) -> str:
        """Return the character of a number of host expert layers."""
        if layers in self.marks:
            return self.marks[layers]
        ran = [n for n, mark in self.marks.items() if mark in "o*"]
        short = [n for n, mark in self.marks.items() if mark == "x"]
        fits = min([*ran, *([] if self.fits is None else [self.fits])], default=None)
        fails = max([*short, *([] if self.fails is None else [self.fails])], default=None)
        if fits is not None and layers >= fits:
            return "="
        return "-" if fails is not None and layers <= fails else "."

    def draw(self, last: int, columns: int) -> Text:
        """Return the strip from 0 to `last`, or the part around its boundary that has room."""
        known = [*self.marks, *(n for n in (self.fits, self.fails) if n is not None)]
        first, end = 0, max([last, *known])
        room = max(8, columns - 2 * len(str(end)) - 2)
        if end + 1 > room:
            middle = self._middle(known)
            first = max(0, min(middle - room // 2, end + 1 - room))
            end = first + room - 1
        text = Text(f"{first} ", style="dim")
        for layers in range(first, end + 1):
            character = self.character(layers)
            text.append(character, style=_STYLES[character])
        return text.append(f" {end}", style="dim")

    def _middle(self, known: list[int]) -> int:
        sure = [n for n in (self.fits, self.fails) if n is not None]
        return sum(sure or known) // max(1, len(sure or known))


@dataclass(frozen=True, slots=True)
class MemoryBars:
    """Memory that the running launch takes, as a bar for each device.

    `limits_mib` are the limits of devices by name. Other programs use what was used before the
    server started, so the first reading of a launch counts as zero.
    """

    limits_mib: Mapping[str, float] = field(default_factory=dict)
    first: MemoryReading | None = None
    last: MemoryReading | None = None

    def restarted(self) -> MemoryBars:
        """Return the bars of a new launch."""
        return replace(self, first=None, last=None)

    def read(self, reading: MemoryReading) -> MemoryBars:
        """Return the bars after another reading."""
        return replace(self, first=self.first or reading, last=reading)

    def draw(self, columns: int) -> Iterator[Text]:
        """Yield a line for each device that has a counter, and one for the host."""
        rows = list(self._rows())
        width = max((len(name) for name, _, _ in rows), default=0)
        for name, taken_mib, limit_mib in rows:
            yield _bar(name.ljust(width), taken_mib, limit_mib, columns)

    def _rows(self) -> Iterator[tuple[str, float, float]]:
        first, last = self.first, self.last
        if first is None or last is None:
            return
        for name, used_mib in last.device_used_mib.items():
            before = first.device_used_mib.get(name)
            free = first.device_free_mib.get(name)
            limit = self.limits_mib.get(name, free)
            if used_mib is not None and before is not None and limit:
                yield one_line(name), max(0.0, used_mib - before), limit
        if (
            last.process_mib is not None
            and first.host_available_mib
            and HOST_NAME not in self._names()
        ):
            yield HOST_NAME, last.process_mib, first.host_available_mib

    def _names(self) -> Mapping[str, float | None]:
        return self.last.device_used_mib if self.last is not None else {}


def _bar(name: str, taken_mib: float, limit_mib: float, columns: int) -> Text:
    share = min(1.0, taken_mib / limit_mib)
    cells = max(10, columns - len(name) - _TEXT_COLUMNS)
    filled = round(share * cells)
    style = "red" if share > _FULL else "yellow" if share > _NEARLY else "cyan"
    text = Text(f"{name} [")
    text.append("#" * filled, style=style)
    text.append("-" * (cells - filled), style="dim")
    return text.append(f"] {mib(taken_mib)} of {mib(limit_mib)}")


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state of a run after some of its events.

    Attributes:
        is_tune: whether the run has all phases.
        stages: seconds of the finished stages of the running launch.
        strips: by layout and KV type, the one that changed last at the end.
        first: the first launch of each candidate, by its key.
        reference: the launch that lines are compared with: the best so far if it has explicit
            settings, else the first launch that has any.
    """

    phase: str = ""
    is_tune: bool = False
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
    first: Mapping[str, Trial] = field(default_factory=dict)
    reference: Trial | None = None

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of the first launch of each candidate, by its key."""
        return {key: trial.number for key, trial in self.first.items()}

    def after(self, event: Event, now_s: float) -> LiveState:
        """Return the state after an event at that time."""
        if isinstance(event, PhaseStarted):
            return replace(
                self,
                phase=event.phase,
                is_tune=self.is_tune or event.phase == "baseline",
                max_launches=event.max_launches,
                launches_in_phase=0,
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
            strip = _strip(self.strips, line).bounded(event.fits, event.fails)
            return replace(self, strips=_changed(self.strips, line, strip))
        return self

    def max_layers(self) -> int:
        """Return the largest possible number of host expert layers, as far as is known."""
        tried = [n for strip in self.strips.values() for n in strip.marks]
        return self.layers if self.layers is not None else max(tried, default=0)

    def _stages(self, now_s: float) -> dict[str, float]:
        if not self.stage:
            return dict(self.stages)
        spent_s = self.stages.get(self.stage, 0.0) + now_s - self.stage_began_s
        return {**self.stages, self.stage: spent_s}

    def _with_outcome(self, trial: Trial) -> LiveState:
        reported = trial.measurement.applied.get("layers") if trial.measurement else None
        model_layers = reported if isinstance(reported, int) else self.layers
        strips = self.strips
        layers = host_layers(trial.candidate, model_layers)
        line = trial.layout, kv_types(trial.candidate)[0]
        if layers is not None and (places_host_layers(trial.candidate) or line in strips):
            is_full = lacks_device_memory(trial.outcome)  # so is one with fewer host layers
            mark = "x" if is_full else "o" if trial.is_completed else "!"
            strips = _changed(strips, line, _strip(strips, line).marked(layers, mark))
        first = {trial.candidate.key: trial, **self.first}
        reference = self.reference
        if reference is None and not OWN_PARAMS.issuperset(trial.candidate.params):
            reference = trial
        return replace(self, layers=model_layers, strips=strips, first=first, reference=reference)

    def _with_best(self, event: Incumbent) -> LiveState:
        strips = {line: strip.without_best() for line, strip in self.strips.items()}
        layers = host_layers(event.candidate, self.layers)
        if layers is not None and strips:
            line = list(strips)[-1]  # the launch that has just ended
            strips = _changed(strips, line, strips[line].marked(layers, "*"))
        best = self.first.get(event.candidate.key)
        has_settings = not OWN_PARAMS.issuperset(event.candidate.params)
        reference = best if best is not None and has_settings else self.reference
        return replace(self, strips=strips, reference=reference)


def _strip(strips: Mapping[_Line, Strip], line: _Line) -> Strip:
    return strips.get(line) or Strip(", ".join(part for part in line if part))


def _changed(strips: Mapping[_Line, Strip], line: _Line, strip: Strip) -> dict[_Line, Strip]:
    """Return the strips with one of them replaced and moved to the end."""
    others = {known: other for known, other in strips.items() if known != line}
    return {**others, line: strip}
