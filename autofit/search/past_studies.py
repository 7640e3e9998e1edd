"""Earlier studies on the same machine, and the prior that follows from them.

The unknowns of the cost model belong to the machine and the build: how fast a link uploads, what
another number of threads changes. So the posterior of the unknowns after one study is the prior
of the next, with the variance that another model, workload, build and time add: with the
similarity r, prior mean m0 and variance s0^2, and the posterior mean m and covariance C, the
prior of the next study is

    mean m0 + r (m - m0),  covariance S0 - r^2 (S0 - C)

which is the posterior for r = 1 and the usual prior for r = 0 (an autoregressive process, of
which this is the Kalman filter). The launches are stored, not the posterior, and the studies are
fitted again when they are read, so that terms and priors can change.

Knowledge may be wrong: a card was moved, memory is slower. So the usual prior stays a part of
the mixture. If the first launches are not as expected, what is known of that part is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.runtime.discovery.found_runtime import format_value
from autofit.search.cost_terms import Design, MachineType, PartName, build_design
from autofit.search.kernel import Kernel
from autofit.search.point_grid import Floats, PointGrid
from autofit.search.posterior import USUAL_HYPER_WEIGHTS, PartPrediction, fit_posterior
from autofit.search.problem import DeviceWork, Goal, PastLaunch, PastStudy, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, TENSOR_LAYOUT, Axis, Point
from autofit.trial.candidate import Candidate, ParamValue

# The prior probability that what is known does not hold any more.
_CHANGED_MACHINE = 0.1
# What is known is contradicted if this many of the first launches deviate in one direction by more
# than this many standard deviations. One of them may have a setting of which nothing is known.
_FIRST_LAUNCHES, _DEVIATING, _MOST_DEVIATIONS = 3, 2, 2.0
# A setting that the launches of a study did not report.
_UNKNOWN_VALUE = "unknown"
# Layouts of earlier launches, with one device and with several. Their work says the rest.
_PAST_LAYOUTS = ("single:past", "past")


class MachinePrior:
    """The prior of a problem's unknowns after the earlier studies on its machine."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        studies = sorted(problem.past_studies, key=lambda study: study.similarity)
        axes = tuple(_with_past_values(axis, studies) for axis in problem.space.axes)
        self._studies = [_PastGrid(problem, axes, study) for study in studies]
        self._learned: dict[PartName, _Learned | None] = {}

    def machine_types(self, design: Design, part: PartName) -> tuple[MachineType, ...]:
        """Return the prior of a part's unknowns: what is known, mixed with the usual prior."""
        known = self._known(design, part)
        return design.machine_types if known is None else _with_usual(known, design)

    def is_contradicted(self, design: Design, part: PartName, logs: Floats) -> bool:
        """Return whether the first launches differ from what is known by more than it allows.

        Args:
            design: of the launches that measured the part, in their order.
            part: the part.
            logs: logarithms of the measurements.
        """
        known = self._known(design, part)
        if known is None:
            return False
        first = replace(
            design,
            offsets=design.offsets[:_FIRST_LAUNCHES],
            columns=design.columns[:_FIRST_LAUNCHES],
        )
        predicted = _predict(first, known)
        sd = np.sqrt(predicted.variance + predicted.noise_variance)
        z = (logs[:_FIRST_LAUNCHES] - predicted.mean) / sd
        deviating = max(int((z > _MOST_DEVIATIONS).sum()), int((z < -_MOST_DEVIATIONS).sum()))
        return deviating >= _DEVIATING

    def expect(self, launches: Sequence[PastLaunch], part: PartName) -> tuple[Floats, Floats]:
        """Return what is expected of launches that were not made.

        The first array has the means of the logarithms of the seconds per token, the second one
        their standard deviations.
        """
        problem = self._problem
        study = PastStudy(problem.traffic, problem.goal.requests, tuple(launches), 1.0)
        axes = tuple(_with_past_values(axis, [study]) for axis in problem.space.axes)
        design = _PastGrid(problem, axes, study).design(part)
        predicted = _predict(design, self.machine_types(design, part))
        return predicted.mean, np.sqrt(predicted.variance)

    def _known(self, design: Design, part: PartName) -> list[MachineType] | None:
        """Return the prior of a part's unknowns by earlier studies alone, or None without any."""
        if part not in self._learned:
            self._learned[part] = self._learn(part)
        learned = self._learned[part]
        return None if learned is None else learned.prior_of(design)

    def _learn(self, part: PartName) -> _Learned | None:
        """Fit the studies in turn, each with the prior that those before it have left."""
        learned: _Learned | None = None
        for study in self._studies:
            learned = study.learn(part, learned) or learned
        return learned


def _predict(design: Design, types: Sequence[MachineType]) -> PartPrediction:
    """Return what a prior predicts, without any launch."""
    design = replace(design, machine_types=tuple(types))
    empty = replace(design, offsets=design.offsets[:0], columns=design.columns[:0])
    posterior = fit_posterior(empty, np.zeros(0), np.zeros((0, 0)), np.zeros(0))
    return posterior.predict(design, np.zeros((len(design.offsets), 0)))


def _with_usual(known: Sequence[MachineType], design: Design) -> tuple[MachineType, ...]:
    usual = [replace(t, weight=t.weight * _CHANGED_MACHINE) for t in design.machine_types]
    total = sum(one.weight for one in known) / (1 - _CHANGED_MACHINE)
    return (*(replace(one, weight=one.weight / total) for one in known), *usual)


@dataclass(frozen=True, slots=True)
class _Learned:
    """The posterior of the unknowns after some studies, in units of their prior deviations.

    Attributes:
        names: of the unknowns.
        weights: of the machine types, with those that were ruled out as 0.
        means: deviations from the prior mean, for each machine type.
        covariances: of the same.
        hyper_weights: probabilities of the hyperparameters, for each machine type.
        similarity: of the last study.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    means: tuple[Floats, ...]
    covariances: tuple[Floats, ...]
    hyper_weights: tuple[Floats, ...]
    similarity: float

    def prior_of(self, design: Design) -> list[MachineType]:
        """Return the prior of another study's unknowns; it must have the same machine types."""
        index = {name: place for place, name in enumerate(self.names)}
        here = [place for place, name in enumerate(design.names) if name in index]
        there = [index[design.names[place]] for place in here]
        share = self.similarity
        found = []
        for number, usual in enumerate(design.machine_types):
            mean, covariance = np.zeros(len(usual.mean)), np.eye(len(usual.mean))
            mean[here] = share * self.means[number][there]
            known = self.covariances[number][np.ix_(there, there)]
            covariance[np.ix_(here, here)] -= share**2 * (np.eye(len(here)) - known)
            hyper_weights = share**2 * self.hyper_weights[number]
            hyper_weights += (1 - share**2) * USUAL_HYPER_WEIGHTS
            found.append(
                MachineType(
                    share**2 * self.weights[number] + (1 - share**2) * usual.weight,
                    usual.mean + usual.sd * mean,
                    usual.sd,
                    np.outer(usual.sd, usual.sd) * covariance,
                    hyper_weights,
                )
            )
        return found


def _with_past_values(axis: Axis, studies: Sequence[PastStudy]) -> Axis:
    """Return an axis with the values of earlier launches, too."""
    past = (_value_of(axis, launch) for study in studies for launch in study.launches)
    return replace(axis, values=tuple(dict.fromkeys((*axis.values, *past))))


def _value_of(axis: Axis, launch: PastLaunch) -> ParamValue:
    """Return the value of an axis that a launch had."""
    used = [launch.settings[name] for name in axis.params if name in launch.settings]
    if not used or used.count(used[0]) < len(used):
        return _UNKNOWN_VALUE
    # A runtime may report `true` where a space says `on`.
    same = (value for value in axis.values if format_value(value) == format_value(used[0]))
    return next(same, used[0])


class _PastGrid:
    """An earlier study as a grid of points, with the axes of the problem of today."""

    def __init__(self, problem: Problem, axes: tuple[Axis, ...], study: PastStudy) -> None:
        self._study = study
        works: dict[str, DeviceWork] = {}
        points: list[Point] = []
        for launch in study.launches:
            point = _point_of(problem, axes, launch)
            works[Candidate(point).key] = launch.work
            points.append(point)
        past = replace(
            problem,
            space=replace(problem.space, axes=axes),
            layouts=problem.layouts
            and tuple(dict.fromkeys((*problem.layouts, TENSOR_LAYOUT, *_PAST_LAYOUTS))),
            most_host_layers=max(_host_layers(one.work) for one in study.launches),
            candidate_of=Candidate,
            work_of=lambda candidate: works.get(candidate.key),
            goal=Goal(requests=study.requests),
            traffic=study.traffic,
            past_studies=(),
        )
        self._grid = PointGrid(past)
        rows = [self._grid.row_of(point) for point in points]
        self._rows = np.array(rows, dtype=np.int64).reshape(len(rows), len(self._grid.axes))
        if self._grid.work is not None:
            for row in self._rows.tolist():
                self._grid.work.learn(row)

    def design(self, part: PartName) -> Design:
        """Return the terms and effects of a part at all launches."""
        return build_design(self._grid, self._rows, part)

    def learn(self, part: PartName, earlier: _Learned | None) -> _Learned | None:
        """Return what is known after this study, or None if it measured nothing of the part."""
        seconds = [
            one.prompt_s if part == "prompt" else one.predicted_s for one in self._study.launches
        ]
        measured = [index for index, value in enumerate(seconds) if value]
        if not measured:
            return None
        rows = self._rows[measured]
        logs = np.log([value for value in seconds if value])
        design = build_design(self._grid, rows, part)
        usual = design.machine_types
        types = _with_usual(earlier.prior_of(design), design) if earlier else usual
        kernel = Kernel(self._grid).matrix(rows, rows)
        posterior = fit_posterior(
            replace(design, machine_types=types), logs, kernel, np.arange(len(rows), dtype=float)
        )
        found = [posterior.unknowns_of(one) for one in types]
        if earlier is not None:
            known, fresh = found[: len(usual)], found[len(usual) :]
            holds = _total(known) >= _total(fresh)
            found = known if holds else fresh
            types = types[: len(usual)] if holds else types[len(usual) :]
        total = _total(found)
        kept = [one or prior for one, prior in zip(found, types, strict=True)]
        sds = [one.sd for one in usual]
        return _Learned(
            design.names,
            tuple(one.weight / total if one else 0.0 for one in found),
            tuple((k.mean - u.mean) / u.sd for k, u in zip(kept, usual, strict=True)),
            tuple(
                k.spread(np.eye(len(sd))) / np.outer(sd, sd)
                for k, sd in zip(kept, sds, strict=True)
            ),
            tuple(
                USUAL_HYPER_WEIGHTS if k.hyper_weights is None else k.hyper_weights for k in kept
            ),
            self._study.similarity,
        )


def _total(types: Sequence[MachineType | None]) -> float:
    return sum(one.weight for one in types if one is not None)


def _point_of(problem: Problem, axes: Sequence[Axis], launch: PastLaunch) -> Point:
    """Return a point of the earlier study, with the axes of the problem of today."""
    point = {axis.name: _value_of(axis, launch) for axis in axes}
    if not problem.searches_layouts:
        return point
    used = sum(layers > 0 for layers in launch.work.layers)
    layout = TENSOR_LAYOUT if launch.work.is_divided else _PAST_LAYOUTS[used > 1]
    return {**point, LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: _host_layers(launch.work)}


def _host_layers(work: DeviceWork) -> int:
    return round(sum(work.host_layers)) + work.whole_layers
