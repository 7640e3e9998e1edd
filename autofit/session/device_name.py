"""Devices that a user names: is one misspelt?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from autofit.trial.device import backend_of

# As llama.cpp's backends name their devices.
_BACKENDS = ("CUDA", "ROCm", "Vulkan", "SYCL", "MTL", "RPC", "MUSA", "CANN", "GPUOpenCL", "OpenCL")
_NAME = re.compile(r"\s*([A-Za-z][A-Za-z_ -]*?)[\s_:-]*0*(\d+)\s*")
_CLOSE = 0.75


def misspelt(named: Iterable[str], found: Iterable[str]) -> Iterator[str]:
    """A sentence for each device named that is not there but looks like one that could be.

    One with a higher number is no misspelling: plans are made for cards to be bought.
    """
    there = tuple(found)
    for name in named:
        if name in there:
            continue
        meant = _meant(name, there)
        if meant is not None:
            where = "is here" if meant in there else "is how such a device is called"
            yield f"there is no device '{name}'; {meant} {where}: did you mean that?"


def _meant(name: str, there: tuple[str, ...]) -> str | None:
    parts = _NAME.fullmatch(name)
    if parts is None:
        alike = set(difflib.get_close_matches(name, there, n=len(there) or 1, cutoff=_CLOSE))
        return next((device for device in there if device in alike), None)
    backends = dict.fromkeys((*(backend_of(device) for device in there), *_BACKENDS))
    plain = {backend.casefold(): backend for backend in backends}
    own = re.sub(r"[^a-z]", "", parts[1].casefold())
    close = [own] if own in plain else difflib.get_close_matches(own, plain, n=1, cutoff=_CLOSE)
    if not close:
        return None
    meant = f"{plain[close[0]]}{int(parts[2])}"
    return None if meant == name else meant
