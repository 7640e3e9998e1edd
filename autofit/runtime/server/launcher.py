"""One launch from start to stop, with its outcome, measurements and evidence.

A launch never raises for what a candidate does; it returns an outcome. It raises only when the
whole run cannot continue (no such program, a full disk, the user's Ctrl-C).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.machine.host_load import ConditionsWatcher
from autofit.machine.memory_counter import (
    MemorySource,
    NoMemorySource,
    read_used_mib,
    wait_for_release,
)
from autofit.machine.memory_watcher import MemoryPeak, MemoryWatcher
from autofit.machine.rpc_servers import find_rpc_server
from autofit.process.managed_process import Readiness
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.runtime.diagnosis.memory_evidence import ExpectedSlots, find_shared_devices
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.logs.server_log import ServerLog
from autofit.runtime.server.client import RequestFailure
from autofit.runtime.server.launch_outcome import (
    LaunchObservation,
    judge_launch,
    reported_memory,
)
from autofit.runtime.server.request_plan import FullContextCheck, RequestPlan
from autofit.runtime.server.send_requests import PromptSource, RequestResults, send_requests
from autofit.runtime.server.server_process import (
    OomKillCounter,
    RunningServer,
    describe_paging,
    is_hung,
    start_server,
)
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.device import HOST_NAME
from autofit.trial.measurement import Measurement, MemoryReading, Sample
from autofit.trial.outcome import Outcome, Rejected, Stage
from autofit.trial.workload import Workload

# The time that a process may take to exit after it dropped a connection: an abort first writes
# a core file and a backtrace.
_EXIT_LIMIT_S = 10.0
_RELEASE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """The result of a launch; `advice` are the changes that would avoid its failure."""

    outcome: Outcome
    measurement: Measurement | None = None
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(slots=True)
class Launcher:
    """A launcher of candidates of one model on one runtime.

    Attributes:
        memory: the devices' memory counters.
        rpc: the remote servers.
        extra_args, env: words and variables of the user for every launch.
        wrapper: words of the user before the program.
        baseline_args: words of the user's own command that are not parameters.
        units: the number of the model's layers, including the output layer.
        limits_mib: the memory that the user allows, by device.
        headroom_mib: returns the memory that a candidate must leave free, by device.
        unreported_mib: returns the memory that a candidate uses in addition to the runtime's
            buffers, by device, if earlier launches showed it.
        expected_slots: returns the prefetch slots that a candidate should allocate.
        on_reading: called, from a thread, with memory readings during a launch.
        find_memory: finds memory counters by the PCI addresses of devices that had none; the
            log of a launch contains the addresses.
        check_files: raises an error if model or runtime were replaced since the run began.
    """

    runtime: Runtime
    model_path: Path
    workload: Workload
    prompts: PromptSource
    memory: MemorySource = field(default_factory=NoMemorySource)
    rpc: str = ""
    extra_args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    wrapper: Sequence[str] = ()
    baseline_args: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    units: int | None = None
    limits_mib: Mapping[str, float] = field(default_factory=dict)
    headroom_mib: Callable[[Candidate], Mapping[str, float]] = lambda _: {}
    unreported_mib: Callable[[Candidate], Mapping[str, float]] = lambda _: {}
    expected_slots: Callable[[Candidate], ExpectedSlots | None] = lambda _: None
    on_reading: Callable[[MemoryReading], None] = lambda _: None
    find_memory: Callable[[Mapping[str, str]], MemorySource] | None = None
    check_files: Callable[[], None] = lambda: None
    _reference_mib: Mapping[str, float | None] | None = None
    _pci_ids: Mapping[str, str] = field(default_factory=dict)

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool = False, as_served: bool
    ) -> LaunchPlan | Rejected:
        """Return the command of a candidate, or the outcome if the runtime does not support it.

        With `is_verbatim` the runtime places layers itself and gets the other words of the
        user's own command. `as_served` leaves out the switches that only measuring needs.
        """
        plan = make_launch_plan(
            self.runtime,
            self.model_path,
            candidate,
            purpose="baseline" if is_verbatim else "prove" if as_served else "measure",
            rpc=self.rpc,
            extra_args=(*(self.baseline_args if is_verbatim else ()), *self.extra_args),
            env=self.env,
            wrapper=self.wrapper,
            limits=self.limits,
        )
        return plan.outcome if isinstance(plan, UnsupportedSetting) else plan

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
    ) -> LaunchResult:
        """Start the server, send the requests, stop it, and wait for the devices' memory.

        If another program has taken the server's port, the server is started once more on another
        port.

        Raises:
            AutofitError: the run cannot continue.
            KeyboardInterrupt: the user stopped it; no process is left running.
        """
        launch = _Launch(self, plan, request_plan, log_path, on_stage)
        self.check_files()
        result = launch.run()
        self.check_files()
        if getattr(result.outcome, "reason", None) != "port_in_use":
            return result
        result = launch.run()
        note = "its first port was in use by another program"
        return replace(result, notes=(*result.notes, note))

    def read_used_mib(self) -> Mapping[str, float | None]:
        """Return the memory in use on each device while no server runs. It is read once."""
        if self._reference_mib is None:
            self._reference_mib = read_used_mib(self.memory)
        return self._reference_mib

    def wait_for_release(self) -> str | None:
        """Wait until devices have their memory back; return a note if they have not."""
        release = wait_for_release(self.memory, self.read_used_mib(), limit_s=_RELEASE_LIMIT_S)
        self._reference_mib = release.reference_mib
        return release.notice

    def find_counters(self, log: ServerLog, peak: MemoryPeak) -> None:
        """Find the counters of devices whose PCI address is in the log, for later launches.

        Each address is tried once.
        """
        found = {
            device.name: device.pci_id
            for device in log.devices
            if device.pci_id is not None
            and peak.used_mib.get(device.name) is None
            and device.name not in self._pci_ids
        }
        if found and self.find_memory is not None:
            self._pci_ids = {**self._pci_ids, **found}
            self.memory = self.find_memory(self._pci_ids)
            self._reference_mib = None


@dataclass(frozen=True, slots=True)
class _Launch:
    """One launch of a plan."""

    launcher: Launcher
    plan: LaunchPlan
    request_plan: RequestPlan
    log_path: Path
    on_stage: Callable[[Stage], None]

    def run(self) -> LaunchResult:
        launcher, plan = self.launcher, self.plan
        launcher.read_used_mib()
        kill_counter = OomKillCounter()
        began_s = time.monotonic()
        self.on_stage("load")
        with (
            MemoryWatcher(launcher.memory, on_reading=launcher.on_reading) as watcher,
            start_server(plan, launcher.runtime.dialect, self.log_path) as server,
        ):
            watcher.watch(server.process.pid)
            ready = server.wait_ready()
            load_s = time.monotonic() - began_s if ready is Readiness.READY else None
            at_ready = watcher.read()
            props: Mapping[str, Any] = {}
            results = RequestResults()
            conditions = ConditionsWatcher(extra_pids=_find_local_servers(launcher.rpc))
            if ready is Readiness.READY:
                found = server.client.props()
                if isinstance(found, RequestFailure):
                    results = RequestResults(failure=found)
                else:
                    props = found
                    with conditions:
                        results = self._send_all(server, watcher)
            failure_kind = getattr(results.failure, "kind", None)
            if failure_kind == "disconnected":
                server.process.wait(_EXIT_LIMIT_S)
            exit_status = None if ready is Readiness.TIMED_OUT else server.process.poll()
            is_late = ready is Readiness.TIMED_OUT or failure_kind == "timed_out"
            has_hung = (
                is_late and exit_status is None and is_hung(server.process.pid, self.log_path)
            )
            paging = describe_paging(at_ready, watcher.read())
            self.on_stage("stop")
            server.process.stop()
        release_note = launcher.wait_for_release()
        watcher.read()  # the memory of other programs now, for comparison
        readings, peak = watcher.readings(), watcher.peak()
        # If a command reports the host's memory, our kernel's count is not the server's.
        is_own_host = HOST_NAME not in readings[0].device_used_mib
        verdict = judge_launch(
            launcher.runtime.dialect,
            self.log_path,
            LaunchObservation(
                candidate=plan.candidate,
                ready=ready,
                exit_status=exit_status,
                failure=results.failure,
                props=props,
                limits=plan.limits,
                units=launcher.units,
                limits_mib=launcher.limits_mib,
                headroom_mib=launcher.headroom_mib(plan.candidate),
                readings=readings,
                free_mib=peak.free_mib,
                unreported_mib=launcher.unreported_mib(plan.candidate),
                slots=launcher.expected_slots(plan.candidate),
                shared=find_shared_devices(launcher.runtime.devices or ()),
                oom_kills=kill_counter.kills() if is_own_host else None,
                is_hung=has_hung,
            ),
        )
        launcher.find_counters(verdict.log, peak)
        # A remote device's counters are its host's: only the user's limit applies to it.
        buffers_mib = {name: row.buffers_mib for name, row in verdict.log.reported.items()}
        return LaunchResult(
            outcome=verdict.outcome,
            measurement=Measurement(
                samples=results.samples,
                load_s=load_s,
                peak_mib=peak.used_mib,
                free_mib=_apply_limits(peak.free_mib, buffers_mib, launcher.limits_mib),
                applied=verdict.applied,
                reported=reported_memory(verdict.log),
                readings=readings,
                conditions=conditions.conditions if results.samples else None,
            ),
            notes=tuple(note for note in (paging, release_note) if note),
            advice=verdict.advice,
        )

    def _send_all(self, server: RunningServer, watcher: MemoryWatcher) -> RequestResults:
        results = self._send(server, self.request_plan, self.plan.limits)
        check = self.request_plan.full_context_check
        if check is not None and results.failure is None:
            results = self._check_full_context(server, watcher, check, results)
        recorder = self.request_plan.output_recorder
        if recorder is None or results.failure is not None:
            return results
        self.on_stage("prompt")
        failure = recorder.ask(server.client, self.plan.limits)
        return replace(results, failure=failure)

    def _send(
        self, server: RunningServer, request_plan: RequestPlan, limits: Limits
    ) -> RequestResults:
        candidate, workload = self.plan.candidate, self.launcher.workload
        context = candidate.get_int("context", workload.context)
        slots = candidate.get_int("parallel", workload.parallel)
        return send_requests(
            server.client,
            request_plan.within(context // slots),
            self.launcher.prompts,
            limits,
            parallel=workload.parallel,
            on_stage=self.on_stage,
        )

    def _check_full_context(
        self,
        server: RunningServer,
        watcher: MemoryWatcher,
        check: FullContextCheck,
        results: RequestResults,
    ) -> RequestResults:
        """Fill the context if a device has too little memory left; add the samples."""
        before = watcher.readings()[0].device_used_mib
        watcher.read()
        peak = watcher.peak()
        usage_mib = {
            name: now - start
            for name, now in peak.used_mib.items()
            if now is not None and (start := before.get(name)) is not None
        }
        if not check.is_due(_apply_limits(peak.free_mib, usage_mib, self.launcher.limits_mib)):
            return results
        tokens = check.request.prompt_tokens * self.launcher.workload.parallel
        limits = self.plan.limits.with_usual_token_time(tokens, _prompt_token_s(results.samples))
        more = self._send(server, RequestPlan("prove", (check.request,)), limits)
        count = len(results.samples)
        samples = (replace(sample, order=count + sample.order) for sample in more.samples)
        return replace(more, samples=(*results.samples, *samples))


def _find_local_servers(rpc: str) -> tuple[int, ...]:
    """Return the processes on this machine that serve remote devices."""
    found = [find_rpc_server(endpoint) for endpoint in rpc.split(",") if endpoint]
    return tuple(pid for pid in found if pid is not None)


def _prompt_token_s(samples: Sequence[Sample]) -> float:
    """Return the longest time per token, in seconds, among the longest prompts."""
    longest = max((sample.prompt_tokens for sample in samples), default=0)
    return max(
        (s.prompt_s / longest for s in samples if longest and s.prompt_tokens == longest),
        default=0.0,
    )


def _apply_limits(
    free_mib: Mapping[str, float | None],
    usage_mib: Mapping[str, float],
    limits_mib: Mapping[str, float],
) -> dict[str, float | None]:
    """Return the free memory of each device, or less if the user's limit leaves less."""
    left = dict(free_mib)
    for name, limit_mib in limits_mib.items():
        usage = usage_mib.get(name)
        if usage is not None:
            counted = left.get(name)
            allowed = limit_mib - usage
            left[name] = allowed if counted is None else min(allowed, counted)
    return left
