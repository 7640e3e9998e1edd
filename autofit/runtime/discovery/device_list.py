"""The devices of a runtime, in its own order."""

from __future__ import annotations

import re

from autofit.runtime.dialect.dialect import Questions
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.short_run import check, start
from autofit.trial.device import Device


def list_devices(runtime: Runtime, rpc: str = "") -> tuple[Device, ...] | None:
    """Ask a runtime for its devices, with remote ones of `rpc` (host:port,...).

    Only while no server runs: asking opens every device, and hangs on a remote device that
    is in use. A device's `usable_mib` is what is free now. None where the runtime cannot be
    asked.

    Raises:
        UsageError: it fails or hangs.
    """
    ask = runtime.dialect.ask
    if not ask.devices:
        return None
    # Arguments act in order: remote servers come before the question.
    remote = (runtime.dialect.launch.rpc, rpc) if rpc and runtime.dialect.launch.rpc else ()
    words = (*remote, *ask.devices)
    finished = start((*runtime.command, *words), runtime.env, ask.timeout_s, tells_wait=True)
    hint = "do the remote servers run, and are they of the same build?" if remote else ""
    check(runtime.program, words, finished, ask.timeout_s, hint)
    return read_devices(finished.stdout, ask)


def read_devices(text: str, ask: Questions) -> tuple[Device, ...]:
    """Read the answer to the question for devices; sizes are in MiB."""
    unified = re.compile(ask.unified_pattern) if ask.unified_pattern else None
    return tuple(
        Device(
            name=match["name"],
            description=match.groupdict().get("description") or "",
            total_mib=float(match["total_mib"]),
            usable_mib=float(match["free_mib"]),
            is_unified=unified is not None
            and unified.search(f"{match['name']}: {match.groupdict().get('description')}")
            is not None,
        )
        for match in re.finditer(ask.device_pattern, text, re.MULTILINE)
    )
