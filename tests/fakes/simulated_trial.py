"""Outcomes and measurements of simulated launches, in autofit's own types."""

from __future__ import annotations

from fakes.physics import Run

from autofit.trial.measurement import Measurement, ReportedMemory, Sample
from autofit.trial.outcome import Completed, Outcome, OutOfMemory, Rejected, Spilled


def outcome_of(run: Run) -> Outcome:
    """The outcome that the truth of this launch deserves."""
    failure = run.failure
    if failure is None:
        if run.spilled_mib > 0:
            worst = max(run.devices, key=lambda device: device.spilled_mib)
            return Spilled("prompt", "simulated", worst.name, run.spilled_mib)
        return Completed(evidence="simulated")
    if failure.kind == "rejected":
        return Rejected("plan", failure.reason, "combination")
    return OutOfMemory(
        stage=failure.stage,
        evidence="simulated",
        where=failure.where or "device",
        buffer=failure.buffer if failure.buffer in _BUFFERS else None,
        device=failure.device,
        requested_mib=failure.requested_mib,
    )


_BUFFERS = ("weights", "kv", "recurrent", "compute", "pool")


def measurement_of(run: Run) -> Measurement:
    """Return the measurement of a simulated launch."""
    return Measurement(
        samples=tuple(
            Sample(
                prompt_tokens=sample.prompt_tokens,
                prompt_s=sample.prompt_s,
                ttft_s=sample.ttft_s,
                predicted_tokens=sample.predicted_tokens,
                predicted_s=sample.predicted_s,
                depth=sample.depth,
                request=sample.request,
                order=sample.order,
            )
            for sample in run.samples
        ),
        load_s=run.load_s,
        peak_mib={device.name: device.used_mib for device in run.devices}
        | {"host": run.host_used_mib},
        free_mib={device.name: device.free_mib for device in run.devices}
        | {"host": run.host_free_mib},
        reported={
            device.name: ReportedMemory(
                model_mib=device.weights_mib,
                context_mib=device.kv_mib + device.cache_mib,
                compute_mib=device.compute_mib,
                free_mib=device.free_mib,
                expert_cache_mib=device.cache_mib,
            )
            for device in run.devices
        },
    )
