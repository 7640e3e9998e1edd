"""The result of a check of a preset file, and the check that its command starts a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autofit.presets.preset import Preset
from autofit.process.managed_process import Readiness
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.server.client import Answer, Client, RequestFailure
from autofit.runtime.server.launch_outcome import LaunchObservation, judge_launch
from autofit.runtime.server.server_process import start_server
from autofit.text_format import one_line
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.units import MIB

_LEAST_LOAD_LIMIT_S = 300.0
_SLOWEST_READ_BYTES_PER_S = 50 * MIB
_EXIT_WAIT_S = 5.0
_PROMPT = "Once upon a time"
_PREDICTED_TOKENS = 4


@dataclass(frozen=True, slots=True)
class PresetCheck:
    """A property of a preset file; `passed` is None if it cannot be checked here."""

    name: str
    passed: bool | None
    detail: str = ""

    @property
    def line(self) -> str:
        """The check for people."""
        verdict = {True: "verified", False: "NOT verified", None: "not checked"}[self.passed]
        return f"{verdict}: {self.name}" + (f": {self.detail}" if self.detail else "")


def verification(checks: Iterable[PresetCheck]) -> dict[str, Any]:
    """Return the checks as JSON data.

    `passed` is false if a check failed, and null if nothing could be checked.
    """
    listed = list(checks)
    verdicts = {check.passed for check in listed} - {None}
    return {
        "passed": False not in verdicts if verdicts else None,
        "checks": [asdict(check) for check in listed],
    }


def load_limits(preset: Preset) -> Limits:
    """Return the time limits of a launch, by the size of the model's file."""
    try:
        size = preset.model_path.stat().st_size
    except OSError:
        size = 0
    return Limits(load_s=_LEAST_LOAD_LIMIT_S + size / _SLOWEST_READ_BYTES_PER_S)


def check_start(
    argv: Sequence[str],
    env: Mapping[str, str],
    preset: Preset,
    runtime: Runtime,
    folder: Path,
) -> PresetCheck:
    """Start a command with `{port}` in it, ask the server once, and stop it.

    The server's log is written into `folder`.

    Raises:
        UsageError: there is no such program, or it cannot run here.
    """
    candidate, limits = Candidate(preset.params), load_limits(preset)
    plan = LaunchPlan(candidate=candidate, argv=tuple(argv), env=env, limits=limits)
    log = folder / "server.log"
    answer: Answer | RequestFailure | None = None
    with start_server(plan, runtime.dialect, log) as server:
        ready = server.wait_ready(no_stop_request)
        props: Mapping[str, Any] = {}
        if ready is Readiness.READY:
            found = server.client.props()
            if isinstance(found, RequestFailure):
                answer = found
            else:
                props, answer = found, ask_once(server.client, limits)
        failed = isinstance(answer, RequestFailure)
        died = server.process.wait(_EXIT_WAIT_S) if failed else server.process.poll()
    outcome = judge_launch(
        runtime.dialect,
        log,
        LaunchObservation(
            candidate=candidate,
            ready=ready,
            exit_status=died,
            failure=answer if isinstance(answer, RequestFailure) else None,
            props=props,
            limits=limits,
        ),
    ).outcome
    name = f"{preset.model_name} starts with these settings and answers a request"
    if outcome.kind == "completed":
        return PresetCheck(name, passed=True)
    kind = outcome.kind.replace("_", " ")
    return PresetCheck(name, passed=False, detail=one_line(f"{kind}: {outcome.evidence}"))


def ask_once(client: Client, limits: Limits) -> Answer | RequestFailure:
    """Send one short request."""
    return client.complete(
        _PROMPT,
        _PREDICTED_TOKENS,
        prompt_limit_s=limits.prompt_s,
        generate_limit_s=limits.generate_s,
    )


def no_stop_request() -> None:
    """Never ask to stop: only an interrupt ends a check early."""
