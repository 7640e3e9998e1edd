"""An examination of this machine: runtimes, devices, host, and findings about them.

Facts that cannot be read are left out, so the examination itself never fails.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from autofit.doctor.findings import Finding, check_cards, check_host, check_runtime, check_settings
from autofit.errors import AutofitError, MachineInUseError, UsageError
from autofit.knowledge.knowledge_folder import Knowledge, read_knowledge
from autofit.knowledge.study_knowledge import this_machine
from autofit.machine.device_source import with_gpu_facts
from autofit.machine.host_load import HostState, watch_host
from autofit.machine.kernel_files import read_text
from autofit.machine.linux_gpus import Card, find_cards
from autofit.machine.lock import machine_lock
from autofit.machine.nvml import nvidia_driver, nvidia_states
from autofit.runtime.dialect.dialect_file import load_all_dialects
from autofit.runtime.discovery.find_runtime import FoundProgram, find_programs, find_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.study.durable_file import check_free_disk
from autofit.study.study_location import user_data_folder
from autofit.trial.device import Device

_WATCH_S = 0.5
_STUDY_MIB = 200
_RANKS = {"fatal": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class ExaminedRuntime:
    """A program that may be a runtime; `runtime` is None if `fault` makes it unusable."""

    program: Path
    runtime: Runtime | None
    fault: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return its version and abilities as JSON data."""
        found = self.runtime
        if found is None:
            return {"program": str(self.program), "fault": self.fault, "hint": self.hint}
        return {
            "program": str(self.program),
            "command": list(found.command),
            "dialect": found.dialect.name,
            "version": found.version.version,
            "build": found.version.build,
            "commit": found.version.commit,
            "parameters": list(found.parameters),
            "kv_types": list(found.kv_types),
            "companions": {name: list(words) for name, words in found.companions.items()},
            "fault": None,
        }


@dataclass(frozen=True, slots=True)
class Examination:
    """The facts and findings; a tune uses the first runtime.

    `devices` is None if the runtime was not asked for them.
    """

    runtimes: tuple[ExaminedRuntime, ...]
    devices: tuple[Device, ...] | None
    drivers: tuple[str, ...]
    cards: tuple[Card, ...]
    host: HostState | None
    findings: tuple[Finding, ...]
    knowledge: Knowledge | None = None

    @property
    def would_work(self) -> bool:
        """True if a tune would work here."""
        return all(finding.level != "fatal" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the examination as JSON data."""
        return {
            "would_work": self.would_work,
            "runtimes": [runtime.to_dict() for runtime in self.runtimes],
            "devices": None if self.devices is None else [asdict(d) for d in self.devices],
            "drivers": list(self.drivers),
            "cards": [asdict(card) for card in self.cards],
            "host": asdict(self.host) if self.host else None,
            "knowledge": self.knowledge.to_dict() if self.knowledge else None,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def examine(runtime: str | None = None, rpc: str = "") -> Examination:
    """Examine the machine and its runtimes, or only the runtime at the path `runtime`."""
    findings: list[Finding] = []
    runtimes = tuple(_examine_runtimes(runtime, findings))
    chosen = runtimes[0].runtime if runtimes else None
    found, states = find_cards(), nvidia_states()
    vendors = list(dict.fromkeys(card.vendor for card in found if card.driver is not None))
    devices = None
    if chosen:
        devices, faults = _list_devices(chosen, rpc)
        devices = with_gpu_facts(devices, env=os.environ) if devices else devices
        findings += faults or check_runtime(chosen, devices, vendors, os.environ)
    findings += check_settings(chosen, os.environ)
    findings += check_cards(found, states)
    host = _read_host()
    if host:
        findings += check_host(host)
    findings += _check_folders()
    findings += _check_extras()
    return Examination(
        runtimes=runtimes,
        devices=devices,
        drivers=_driver_versions(found),
        cards=found,
        host=host,
        findings=tuple(sorted(findings, key=lambda finding: _RANKS[finding.level])),
        knowledge=_read_knowledge(devices, host),
    )


def _read_knowledge(
    devices: tuple[Device, ...] | None, host: HostState | None
) -> Knowledge | None:
    """Return what is known about this machine, or None if its devices were not listed."""
    if devices is None or host is None:
        return None
    return read_knowledge(this_machine(devices, host.cores.logical))


def _examine_runtimes(path: str | None, findings: list[Finding]) -> Iterator[ExaminedRuntime]:
    """Yield the runtimes, first the one that a tune would use; its fault is a finding."""
    try:
        places = [*find_programs(load_all_dialects())] if path is None else [None]
    except UsageError as error:
        findings.append(Finding("fatal", "faulty_dialect", error.message, error.hint))
        return
    for index, place in enumerate(places):
        examined = _examine_runtime(place, path)
        if index == 0 and examined.runtime is None:
            findings.append(Finding("fatal", "runtime_fails", examined.fault, examined.hint))
        yield examined
    if not places:
        findings.append(
            Finding(
                "fatal",
                "no_runtime",
                "no runtime was found: no llama-server on PATH, none in Python's packages",
                "pip install 'llama-autofit[embedded]' (CPU) or 'llama-autofit[vulkan]', or build "
                "llama.cpp and give its llama-server with --runtime PATH",
            )
        )


def _examine_runtime(place: FoundProgram | None, path: str | None) -> ExaminedRuntime:
    program = place.program if place else Path(path or "")
    try:
        if place and place.dialect:
            found = find_runtime(None, place.dialect.name)
        else:
            found = find_runtime(program)
    except AutofitError as error:
        return ExaminedRuntime(program, None, error.message, error.hint)
    except OSError as error:
        return ExaminedRuntime(program, None, f"{program}: {error.strerror or error}")
    return ExaminedRuntime(found.program, found)


def _list_devices(runtime: Runtime, rpc: str) -> tuple[tuple[Device, ...] | None, list[Finding]]:
    """Return the runtime's devices, or None and a finding if it cannot list them.

    Listing opens every device, so it is left out while another autofit measures.
    """
    try:
        with machine_lock("autofit doctor"):
            return list_devices(runtime, rpc), []
    except MachineInUseError as error:
        message = f"devices were not listed: {error.message}"
        return None, [Finding("warning", "machine_in_use", message, error.hint)]
    except UsageError as error:
        return None, [Finding("fatal", "devices_fail", error.message, error.hint)]
    except AutofitError as error:
        return None, [Finding("fatal", "no_lock", error.message, error.hint)]


def _read_host() -> HostState | None:
    try:
        return watch_host(_WATCH_S)
    except (OSError, psutil.Error):
        return None


def _driver_versions(found: tuple[Card, ...]) -> tuple[str, ...]:
    versions = [nvidia_driver()]
    for card in found:
        if card.driver and card.vendor != "nvidia":
            version = read_text(Path("/sys/module", card.driver, "version"))
            version = version or f"of {platform.system()} {platform.release()}"
            versions.append(f"{card.driver} {version}")
    return tuple(dict.fromkeys(version for version in versions if version))


def _check_folders() -> Iterator[Finding]:
    """Yield findings on the folders that a tune writes to."""
    studies = (_absolute(Path("results")), _absolute(user_data_folder() / "studies"))
    if studies[0] is None:
        yield Finding(
            "fatal",
            "no_working_directory",
            "the working directory does not exist any more",
            "cd to a folder that exists",
        )
    place = next((place for place in studies if place and _is_writable(place)), None)
    if place is None:
        yield Finding(
            "fatal",
            "no_place_for_studies",
            "neither the working directory nor the user's data folder is writable",
            "change to a folder that you may write to, or use `autofit tune --study DIR`",
        )
    else:
        try:
            check_free_disk(place, _STUDY_MIB)
        except (AutofitError, OSError) as error:
            yield Finding(
                "fatal", "disk_full", str(error), "free some space, or use another --study DIR"
            )
    cache = _absolute(platformdirs.user_cache_path("autofit"))
    if cache is None or not _is_writable(cache):
        yield Finding(
            "note",
            "cache_not_writable",
            f"{cache or 'the cache folder'} is not writable: each command examines the runtime "
            "again",
            "export XDG_CACHE_HOME=/some/folder/of/yours",
        )


def _absolute(path: Path) -> Path | None:
    try:
        return path.absolute()
    except OSError:  # the working directory was removed
        return None


def _is_writable(path: Path) -> bool:
    """Return whether the path is a writable folder, or could be made one."""
    for place in (path, *path.parents):
        try:
            if place.exists():
                return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        except OSError:
            return False
    return False


def _check_extras() -> Iterator[Finding]:
    if not (find_spec("plotly") and find_spec("jinja2")):
        yield Finding(
            "note",
            "no_html_report",
            "a tune writes no HTML report: plotly or jinja2 is missing",
            "pip install 'llama-autofit[report]'",
        )
