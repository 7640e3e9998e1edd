"""The environment of a result: machine, build and model file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autofit.input_files import open_regular
from autofit.units import MIB

_SAMPLE_BYTES = MIB
_SAMPLES = 16


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(files: Sequence[Path]) -> str:
    """Return a fast digest of a model's files, or an empty text if one cannot be read.

    It covers each size and 16 samples of 1 MiB from the first byte to the last. That is enough
    to distinguish models and quantisations, but does not prove that no bit has changed.
    """
    digest = hashlib.sha256()
    try:
        for path in files:
            size = path.stat().st_size
            digest.update(f"{size};".encode())
            last = max(0, size - _SAMPLE_BYTES)
            offsets = sorted({last * index // (_SAMPLES - 1) for index in range(_SAMPLES)})
            with open_regular(path) as file:
                for offset in offsets:
                    file.seek(offset)
                    digest.update(file.read(_SAMPLE_BYTES))
    except OSError:  # removed since its header was read; whoever loads it reports that
        return ""
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Machine, build and model of a result.

    `devices` are lines for people (`CUDA0: NVIDIA GeForce RTX 3060, 12288 MiB`) without
    changing values such as free memory. `links` are the speeds of copies to the devices. These
    and `system` are only for information.
    """

    cpu: str
    cpu_count: int
    memory_mib: float
    devices: tuple[str, ...]
    driver: str
    build: str
    model_digest: str
    system: str = ""
    links: tuple[str, ...] = ()

    def _machine(self) -> dict[str, Any]:
        return {
            "cpu": self.cpu,
            "cpu_count": self.cpu_count,
            "memory_gib": installed_gib(self.memory_mib),
            "devices": list(self.devices),
            "driver": self.driver,
        }

    @property
    def digest(self) -> str:
        """Digest of machine, build and model."""
        return _digest([self._machine(), self.build, self.model_digest])

    @property
    def check_value(self) -> str:
        """The digests `machine-build-model` with eight digits each, to see which one differs."""
        parts = (self._machine(), self.build, self.model_digest)
        return "-".join(_digest(part)[:8] for part in parts)

    def differences(self, other: Environment) -> list[str]:
        """Return a text for each difference; results are comparable if there is none."""
        here = {**self._machine(), "build": self.build, "model": self.model_digest}
        there = {**other._machine(), "build": other.build, "model": other.model_digest}
        return [
            f"{name}: {_show(here[name])}, now {_show(there[name])}"
            for name in here
            if here[name] != there[name]
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the environment as JSON data, with its digest for people to compare."""
        lists = {"devices": list(self.devices), "links": list(self.links)}
        return {**asdict(self), **lists, "digest": self.digest}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Environment:
        """Return the environment from the data of `to_dict`.

        Raises:
            TypeError: a field is missing or unknown.
        """
        fields = {name: value for name, value in data.items() if name != "digest"}
        lists = {name: tuple(fields.get(name, ())) for name in ("devices", "links")}
        return cls(**{**fields, **lists})


def installed_gib(usable_mib: float) -> float:
    """Return the size of memory as sold: kernels reserve 1 to 4%, which varies by some MiB."""
    if usable_mib <= 0:
        return 0.0
    step = 2.0 ** math.floor(math.log2(usable_mib / 1024)) / 4
    return math.ceil(usable_mib / 1024 / step) * step


def _show(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
