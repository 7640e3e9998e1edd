"""What else may have changed from one night to the next: machine, build and what it was doing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autofit.machine.host_load import HostState
from autofit.study.fingerprint import Environment

# Boost clocks of a GPU and a CPU wander by this much from launch to launch.
_SAME_CLOCK = 0.05
# Cores kept busy by others that no measurement notices.
_SAME_CORES = 0.5
# A number that is no part of a name, such as that of CUDA0.
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSnapshot:
    """Machine, build and model of a night, and what the host did while it was measured.

    `clocks_mhz` are by device, with `cpu`, and None where they are not told; `others_cores`
    are the cores that other processes kept busy; `remarks` what `HostState.words` says.
    `task` is all that is asked of the model and said to its runtime beside settings.
    """

    driver: str = ""
    build: str = ""
    model_digest: str = ""
    cpu: str = ""
    devices: tuple[str, ...] = ()
    system: str = ""
    task: str = ""
    clocks_mhz: Mapping[str, float | None] = field(default_factory=dict)
    others_cores: float | None = None
    load_1m: float | None = None
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Environment, host: HostState | None) -> EnvironmentSnapshot:
        """The surroundings of a study, and the host's state while it ran, where known."""
        clocks: dict[str, float | None] = {}
        if host is not None:
            clocks = {f"{gpu.name} ({gpu.pci_id})": gpu.clock_mhz for gpu in host.gpus}
            clocks["cpu"] = host.cpu_mhz
        return cls(
            driver=environment.driver,
            build=environment.build,
            model_digest=environment.model_digest,
            cpu=environment.cpu,
            devices=environment.devices,
            system=environment.system,
            clocks_mhz=clocks,
            others_cores=host.others_cores if host else None,
            load_1m=host.load_1m if host else None,
            remarks=host.warnings() if host else (),
        )

    def changes(self, now: EnvironmentSnapshot) -> tuple[str, ...]:
        """What differs from this night to the other, in words; empty where nothing does."""
        return tuple(self._changes(now))

    def _changes(self, now: EnvironmentSnapshot) -> Iterator[str]:
        for name, title in (
            ("driver", "driver"),
            ("build", "runtime build"),
            ("model_digest", "model file"),
            ("cpu", "CPU"),
            ("devices", "devices"),
            ("system", "system"),
            ("task", "task"),
        ):
            before, after = getattr(self, name), getattr(now, name)
            # Unknown on one side is no difference that anybody saw.
            if before and after and before != after:
                yield f"{title}: {_show(before)}, now {_show(after)}"
        for device in sorted(self.clocks_mhz.keys() & now.clocks_mhz.keys()):
            was, is_now = self.clocks_mhz[device], now.clocks_mhz[device]
            if was and is_now and abs(is_now / was - 1) > _SAME_CLOCK:
                yield f"clock of {device}: {was:.0f} MHz, now {is_now:.0f} MHz"
        ours, theirs = self.others_cores, now.others_cores
        if ours is not None and theirs is not None and abs(theirs - ours) > _SAME_CORES:
            yield f"other processes: {ours:.1f} cores busy, now {theirs:.1f}"
        for remark in now.remarks:
            if _without_figures(remark) not in map(_without_figures, self.remarks):
                yield remark

    def to_dict(self) -> dict[str, Any]:
        """The surroundings as JSON data."""
        return {
            **asdict(self),
            "devices": list(self.devices),
            "clocks_mhz": dict(self.clocks_mhz),
            "remarks": list(self.remarks),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvironmentSnapshot:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError: a field is missing or not known.
        """
        return cls(
            **{**data, "devices": tuple(data["devices"]), "remarks": tuple(data["remarks"])}
        )


def _without_figures(remark: str) -> str:
    """What a remark is about: the same one with other figures is no change."""
    return _FIGURE.sub("N", remark)


def _show(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
