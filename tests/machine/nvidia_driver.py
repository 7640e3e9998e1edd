"""A substitute for NVIDIA's library behind the real pynvml, for machines without a card."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pynvml

from autofit.machine import nvml

_UNKNOWN_ERROR = 999
# Of an RTX 3060: an error number, or the values that a function of the library writes.
ONE_CARD: Mapping[str, Any] = {
    "nvmlInitWithFlags": 0,
    "nvmlDeviceGetCount_v2": [1],
    "nvmlDeviceGetHandleByIndex_v2": 0,
    "nvmlDeviceGetPciInfo_v3": [{"busId": "00000000:01:00.0", "bus": 1}],
    "nvmlDeviceGetName": ["NVIDIA GeForce RTX 3060"],
    "nvmlDeviceGetUUID": ["GPU-3c1a2f60-9a1f-4f4e-8f6a-0f2b8f3d2c11"],
    "nvmlDeviceGetMemoryInfo": [{"total": 12 << 30, "free": 11 << 30, "used": 1 << 30}],
    "nvmlDeviceGetCurrentClocksThrottleReasons": [5],
    "nvmlDeviceGetUtilizationRates": [{"gpu": 30, "memory": 12}],
    "nvmlDeviceGetClockInfo": [1777],
    "nvmlDeviceGetMaxClockInfo": [2100],
    "nvmlDeviceGetTemperature": [64],
    "nvmlDeviceGetPowerUsage": [101_500],
    "nvmlDeviceGetEnforcedPowerLimit": [120_000],
    "nvmlDeviceGetPowerManagementDefaultLimit": [170_000],
    "nvmlDeviceGetCurrPcieLinkGeneration": [1],
    "nvmlDeviceGetMaxPcieLinkGeneration": [4],
    "nvmlDeviceGetCurrPcieLinkWidth": [16],
    "nvmlDeviceGetDisplayActive": [1],
    "nvmlDeviceGetCudaComputeCapability": [8, 6],
    "nvmlSystemGetDriverVersion": ["580.95.05"],
}


class _Library:
    """The library's functions, which write what `answers` gives for them."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self._answers:
            raise AttributeError(name)  # an older driver

        def function(*arguments: Any) -> int:
            answer = self._answers[name]
            if not isinstance(answer, list):
                return answer if isinstance(answer, int) else _UNKNOWN_ERROR
            places = [
                getattr(one, "_obj", one)
                for one in arguments
                if hasattr(one, "_obj") or isinstance(one, ctypes.Array)
            ]
            try:
                for place, value in zip(places, answer, strict=True):
                    _write(place, value)
            except (TypeError, ValueError, AttributeError):
                return _UNKNOWN_ERROR  # the library's own types have no such value
            return 0

        return function


def _write(place: Any, value: Any) -> None:
    if isinstance(place, ctypes.Structure):
        for name, one in value.items():
            setattr(place, name, _bytes(one) if isinstance(one, str) else one)
    else:
        place.value = _bytes(value)[: len(place) - 1] if isinstance(value, str) else value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a surrogate becomes bytes that are no UTF-8


@contextmanager
def nvidia_driver(answers: Mapping[str, Any]) -> Iterator[None]:
    """Let pynvml call a library with these answers."""
    before = pynvml.nvmlLib
    pynvml.nvmlLib = _Library(answers)
    try:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        nvml._nvml.cache_clear()
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        nvml._nvml.cache_clear()
