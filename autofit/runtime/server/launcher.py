"""One launch from start to stop: what came of it, what it measured, and its evidence.

A launch never raises for what a candidate does; it returns an outcome. It raises only when
the run itself cannot go on (no such program, a full disk, the user's Ctrl-C).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.machine.conditions_watcher import ConditionsWatcher
from autofit.machine.memory_watcher import (
    HOST,
    MemorySource,
    MemoryWatcher,
    NoSource,
    Peak,
    used_mib,
    wait_for_release,
)
from autofit.machine.rpc import find_server
from autofit.process import Ready
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.runtime.diagnosis.memory_evidence import ExpectedSlots, find_shared_devices
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.logs.server_log import ServerLog
from autofit.runtime.server.launch_outcome import (
    LaunchObservation,
    ResourceObservation,
    judge_launch,
    reported_memory,
)
from autofit.runtime.server.request_plan import RequestPlan
from autofit.runtime.server.send_requests import PromptSource, RequestResults, send_requests
from autofit.runtime.server.server_process import (
    OomKillCounter,
    RunningServer,
    describe_paging,
    is_hung,
    start_server,
)
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.measurement import Measurement, MemoryReading, Sample
from autofit.trial.outcome import Outcome, Rejected, Stage
from autofit.trial.workload import Workload

# How long a process may take to die once it has dropped a connection: an abort writes a
# core file and a backtrace first.
_DEATH_S = 10.0
_RELEASE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What a launch brought; `advice` is what would avoid its failure."""

    outcome: Outcome
    measurement: Measurement | None = None
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(slots=True)
class Launcher:
    """Launches candidates of one model on one runtime.

    `env`, `wrapper` and `extra_args` are the user's and go into every launch. `memory` reads
    the devices' counters; `baseline_args` are words of the user's own command that are no
    parameters; `units` are the model's layers and output layer, `limits_mib` what the user
    lets a device hold. `unreported_mib` tells by device what a candidate takes beside the
    runtime's buffers, where earlier launches showed it, `expected_slots` the prefetch slots that
    it is to take; `on_reading` hears of memory while a launch is under way, from a thread.
    `find_memory` finds the counters anew by the PCI addresses of devices that had none, once a
    log tells these.
    """

    runtime: Runtime
    model_path: Path
    workload: Workload
    prompts: PromptSource
    memory: MemorySource = field(default_factory=NoSource)
    rpc: str = ""
    extra_args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    wrapper: Sequence[str] = ()
    baseline_args: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    units: int | None = None
    limits_mib: Mapping[str, float] = field(default_factory=dict)
    unreported_mib: Callable[[Candidate], Mapping[str, float]] = lambda _: {}
    expected_slots: Callable[[Candidate], ExpectedSlots | None] = lambda _: None
    on_reading: Callable[[MemoryReading], None] = lambda _: None
    find_memory: Callable[[Mapping[str, str]], MemorySource] | None = None
    _reference_mib: Mapping[str, float | None] | None = None
    _pci_ids: Mapping[str, str] = field(default_factory=dict)

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool = False, as_served: bool
    ) -> LaunchPlan | Rejected:
        """Return the command of a candidate, or why the runtime cannot be given it.

        With `is_verbatim` the runtime places layers itself and gets the other words of the
        user's own command; `as_served` leaves out the switches that only measuring needs.
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
        check_stop: Callable[[], None],
    ) -> LaunchResult:
        """Start, ask, measure, stop, and wait until devices have their memory back.

        A server that finds its port taken is started again once, on another.

        Raises:
            AutofitError: the run cannot go on.
            KeyboardInterrupt, Interrupted: the user stopped it; nothing is left running.
        """
        result = self._launch(plan, request_plan, log_path, on_stage, check_stop)
        if getattr(result.outcome, "reason", None) != "port_in_use":
            return result
        again = self._launch(plan, request_plan, log_path, on_stage, check_stop)
        return replace(again, notes=(*again.notes, "its first port was taken by another program"))

    def _launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        log_path: Path,
        on_stage: Callable[[Stage], None],
        check_stop: Callable[[], None],
    ) -> LaunchResult:
        if self._reference_mib is None:
            self._reference_mib = used_mib(self.memory)
        kills = OomKillCounter()
        began_s = time.monotonic()
        on_stage("load")
        with (
            MemoryWatcher(self.memory, tell=self.on_reading) as watcher,
            start_server(plan, self.runtime.dialect, log_path) as server,
        ):
            watcher.watch(server.process.pid)
            ready = server.wait_ready(check_stop)
            load_s = time.monotonic() - began_s
            props: Mapping[str, Any] = {}
            replies = RequestResults()
            died: int | None = None
            at_ready = watcher.read()
            around = ConditionsWatcher(also=self._remote_servers())
            if ready is Ready.READY:
                props = server.client.props()
                with around:
                    replies = self._ask(
                        server,
                        plan,
                        request_plan,
                        watcher=watcher,
                        on_stage=on_stage,
                        check_stop=check_stop,
                    )
                died = server.process.wait(_DEATH_S) if _is(replies, "disconnected") else None
                died = server.process.poll() if died is None else died
            elif ready is Ready.EXITED:
                died = server.process.poll()
            is_late = ready is Ready.TIMED_OUT or (died is None and _is(replies, "timed_out"))
            stood_still = is_late and is_hung(server.process.pid, log_path)
            paging = describe_paging(at_ready, watcher.read())
            on_stage("stop")
            server.process.stop()
        release = wait_for_release(self.memory, self._reference_mib, limit_s=_RELEASE_LIMIT_S)
        self._reference_mib = release.reference
        watcher.read()  # what others hold now, for comparison
        peak = watcher.peak()
        # Where a command tells of the host, the kernel that counts is not ours.
        is_own_host = HOST not in watcher.readings()[0].device_used_mib
        verdict = judge_launch(
            self.runtime.dialect,
            log_path,
            LaunchObservation(
                candidate=plan.candidate,
                ready=ready,
                died=died,
                failure=replies.failure,
                props=props,
                limits=plan.limits,
                units=self.units,
                limits_mib=self.limits_mib,
                watched=ResourceObservation(
                    readings=watcher.readings(),
                    free_mib=peak.free_mib,
                    unreported_mib=self.unreported_mib(plan.candidate),
                    slots=self.expected_slots(plan.candidate),
                    shared=find_shared_devices(self.runtime.devices or ()),
                    oom_kills=kills.since() if is_own_host else None,
                    stood_still=stood_still,
                ),
            ),
        )
        self._find_uncounted(verdict.log, peak)
        return LaunchResult(
            outcome=verdict.outcome,
            measurement=Measurement(
                samples=replies.samples,
                load_s=load_s if ready is Ready.READY else None,
                peak_mib=peak.used_mib,
                free_mib=_left_mib(peak.free_mib, verdict.log, self.limits_mib),
                applied=verdict.applied,
                reported=reported_memory(verdict.log),
                readings=watcher.readings(),
                conditions=around.conditions if replies.samples else None,
            ),
            notes=tuple(note for note in (paging, release.notice) if note),
            advice=verdict.advice,
        )

    def _find_uncounted(self, log: ServerLog, peak: Peak) -> None:
        """Have later launches count the devices without a counter whose address was told.

        An address is tried once: a device that has none by it stays unknown.
        """
        told = {
            device.name: device.pci_id
            for device in log.devices
            if device.pci_id is not None
            and peak.used_mib.get(device.name) is None
            and device.name not in self._pci_ids
        }
        if told and self.find_memory is not None:
            self._pci_ids = {**self._pci_ids, **told}
            self.memory = self.find_memory(self._pci_ids)
            self._reference_mib = None

    def _remote_servers(self) -> tuple[int, ...]:
        """The processes of remote devices that run on this machine."""
        found = [find_server(endpoint) for endpoint in self.rpc.split(",") if endpoint]
        return tuple(pid for pid in found if pid is not None)

    def _ask(
        self,
        server: RunningServer,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        watcher: MemoryWatcher,
        on_stage: Callable[[Stage], None],
        check_stop: Callable[[], None],
    ) -> RequestResults:
        context = plan.candidate.get_int("context", self.workload.context)
        slots = plan.candidate.get_int("parallel", self.workload.parallel)

        def send(wanted: RequestPlan, limits: Limits) -> RequestResults:
            return send_requests(
                server.client,
                wanted.within(context // slots),
                self.prompts,
                limits,
                parallel=self.workload.parallel,
                on_stage=on_stage,
                check_stop=check_stop,
            )

        replies = send(request_plan, plan.limits)
        fill = request_plan.fill
        if fill is not None and replies.failure is None:
            watcher.read()
            if fill.is_due(_room_mib(watcher.peak(), watcher.readings(), self.limits_mib)):
                tokens = fill.request.prompt_tokens * self.workload.parallel
                limits = plan.limits.at_rate(tokens, _prompt_token_s(replies.samples))
                more = send(RequestPlan("prove", (fill.request,)), limits)
                last = len(replies.samples)
                filled = (replace(sample, order=last + sample.order) for sample in more.samples)
                replies = replace(more, samples=(*replies.samples, *filled))
        if request_plan.questions is None or replies.failure is not None:
            return replies
        check_stop()
        on_stage("prompt")
        return replace(replies, failure=request_plan.questions.ask(server.client, plan.limits))


def _prompt_token_s(samples: Sequence[Sample]) -> float:
    """Seconds that a token of the longest prompt took, the slowest where there are several."""
    longest = max((sample.prompt_tokens for sample in samples), default=0)
    return max(
        (s.prompt_s / longest for s in samples if longest and s.prompt_tokens == longest),
        default=0.0,
    )


def _room_mib(
    peak: Peak, readings: Sequence[MemoryReading], limits_mib: Mapping[str, float]
) -> dict[str, float | None]:
    """What devices have left while a server runs: free memory, and what the user lets it take."""
    left = dict(peak.free_mib)
    before = readings[0].device_used_mib if readings else {}
    for name, limit_mib in limits_mib.items():
        start, now = before.get(name), peak.used_mib.get(name)
        if start is not None and now is not None:
            allowed, counted = limit_mib - (now - start), left.get(name)
            left[name] = allowed if counted is None else min(allowed, counted)
    return left


def _left_mib(
    free_mib: Mapping[str, float | None], log: ServerLog, limits_mib: Mapping[str, float]
) -> dict[str, float | None]:
    """What was left at the peak, of what the user allows where that is less.

    A remote device reports its host's memory, so that only the user's word limits it.
    """
    left = dict(free_mib)
    for name, limit_mib in limits_mib.items():
        row = log.reported.get(name)
        if row is not None:
            allowed = limit_mib - row.buffers_mib
            counted = left.get(name)
            left[name] = allowed if counted is None else min(allowed, counted)
    return left


def _is(replies: RequestResults, kind: str) -> bool:
    return getattr(replies.failure, "kind", None) == kind
