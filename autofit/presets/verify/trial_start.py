"""One start of what a preset's file says: ready, as asked, and one request answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autofit.presets.facts import PresetFacts
from autofit.presets.verify.verification import Check
from autofit.process import Ready
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.server.client import Answer, Client, RequestFailure
from autofit.runtime.server.launch_outcome import LaunchObservation, judge_launch
from autofit.runtime.server.server_process import start_server
from autofit.text_format import one_line
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.units import MIB

_LEAST_LOAD_LIMIT_S = 300.0
_SLOWEST_READ_BYTES_S = 50 * MIB
_DEATH_S = 5.0
_PROMPT = "Once upon a time"
_PREDICTED_TOKENS = 4


def address(facts: PresetFacts) -> Sequence[str]:
    """The words that make the server listen on a spare port, whatever its file says.

    Of a flag given twice the last counts.
    """
    return facts.address


def limits(facts: PresetFacts) -> Limits:
    """How long the model may take to load."""
    try:
        size = facts.model_path.stat().st_size
    except OSError:
        size = 0
    return Limits(load_s=_LEAST_LOAD_LIMIT_S + size / _SLOWEST_READ_BYTES_S)


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    facts: PresetFacts,
    runtime: Runtime,
    folder: Path,
) -> Check:
    """Start a command with a `{port}` in it, ask once, and stop it.

    Raises:
        UsageError: there is no such program, or it cannot run here.
    """
    plan = LaunchPlan(
        candidate=Candidate(facts.params), argv=tuple(argv), env=env, limits=limits(facts)
    )
    log = folder / "server.log"
    answer: Answer | RequestFailure | None = None
    with start_server(plan, runtime.dialect, log) as server:
        ready = server.wait_ready(_never)
        props = server.client.props() if ready is Ready.READY else {}
        if ready is Ready.READY:
            answer = ask(server.client, plan.limits)
        failed = isinstance(answer, RequestFailure)
        died = server.process.wait(_DEATH_S) if failed else server.process.poll()
    verdict = judge_launch(
        runtime.dialect,
        log,
        LaunchObservation(
            candidate=plan.candidate,
            ready=ready,
            died=died,
            failure=answer if isinstance(answer, RequestFailure) else None,
            props=props,
            limits=plan.limits,
        ),
    )
    name = f"{facts.model_name} starts as meant and answers a request"
    if verdict.outcome.kind == "completed":
        return Check(name, passed=True)
    kind = verdict.outcome.kind.replace("_", " ")
    return Check(name, passed=False, detail=one_line(f"{kind}: {verdict.outcome.evidence}"))


def ask(client: Client, within: Limits) -> Answer | RequestFailure:
    """One short request."""
    return client.complete(
        _PROMPT,
        _PREDICTED_TOKENS,
        prompt_limit_s=within.prompt_s,
        generate_limit_s=within.generate_s,
    )


def _never() -> None:
    """Nobody asks to stop but by an interrupt."""
