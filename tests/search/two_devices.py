"""A small simulated machine with two devices, of which the first is slow."""

from __future__ import annotations

from autofit.search.problem import DeviceWork, Fit, Goal, ModelTraffic, Observation, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point, Space
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.workload import Request

LAYERS = 24
# Without layouts in common, `halves` and `both` place the layers equally.
LAYOUTS = ("halves", "both", "single:A", "single:B")
_ROOM_MIB = 5000.0
_LAYER_MIB = 400.0
_PROMPT, _PREDICTED = 4096, 257
# Seconds for each token: a layer on each device, and host experts of a layer.
_PROMPT_S = {"A": 4e-4, "B": 2e-5}
_TOKEN_S = {"A": 4e-3, "B": 4e-4}
_HOST_PROMPT_S, _HOST_TOKEN_S = 3e-5, 1e-3


def problem() -> Problem:
    """Return the search problem."""
    return Problem(
        space=Space("two", "moe", (Axis("ubatch", (2048, 1024)),), ("halves",)),
        layouts=LAYOUTS,
        most_host_layers=LAYERS,
        candidate_of=_candidate_of,
        fit_of=_fit_of,
        goal=Goal(requests=(Request(_PROMPT, _PREDICTED),)),
        traffic=ModelTraffic(layers=LAYERS),
        devices=(Device("A", "slow", 8192, 8192), Device("B", "fast", 8192, 8192)),
        work_of=_work_of,
    )


def _candidate_of(point: Point) -> Candidate:
    layout = str(point[LAYOUT_AXIS])
    devices = layout.partition(":")[2] or "A,B"
    return Candidate(
        {"devices": devices, "n_cpu_moe": point[HOST_LAYERS_AXIS], "ubatch": point["ubatch"]}
    )


def _work_of(candidate: Candidate) -> DeviceWork:
    devices = candidate.get_str("devices", "")
    host_layers = candidate.get_int("n_cpu_moe", 0)
    if devices == "A":
        return DeviceWork((LAYERS, 0), (host_layers, 0), 0, 0)
    if devices == "B":
        return DeviceWork((0, LAYERS), (0, host_layers), 0, 1)
    half = LAYERS // 2
    first = min(half, host_layers)
    return DeviceWork((half, LAYERS - half), (first, host_layers - first), 0, 0)


def _fit_of(candidate: Candidate) -> Fit:
    work = _work_of(candidate)
    needed = max(
        _LAYER_MIB * (layers - host)
        for layers, host in zip(work.layers, work.host_layers, strict=True)
    )
    return Fit(_ROOM_MIB - needed, needed)


def observe(point: Point) -> Observation:
    """Launch a point and return the observation."""
    candidate = _candidate_of(point)
    if _fit_of(candidate).margin_mib < 0:
        return Observation(point, None, "device", 5.0)
    work = _work_of(candidate)
    prompt_s = sum(n * s for n, s in zip(work.layers, _PROMPT_S.values(), strict=True))
    token_s = sum(n * s for n, s in zip(work.layers, _TOKEN_S.values(), strict=True))
    uploads = sum(work.host_layers) * 2048 / int(point["ubatch"])
    prompt_s += _HOST_PROMPT_S * uploads
    token_s += _HOST_TOKEN_S * sum(work.host_layers)
    cost = prompt_s * _PROMPT + token_s * (_PREDICTED - 1)
    return Observation(point, cost, None, 10.0 + cost, prompt_s, token_s)
