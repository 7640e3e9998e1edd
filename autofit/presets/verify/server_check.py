"""Checks that a preset file starts servers: a command, or a file of llama-server's router."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autofit.presets.command_options import Option, parse_options
from autofit.presets.formats.ini import section_name, section_options
from autofit.presets.preset import Preset
from autofit.process.managed_process import Readiness
from autofit.runtime.diagnosis.diagnose import diagnose
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.runtime.logs.log_line import read_lines
from autofit.runtime.server.answers import ModelStatus, WrongAnswerError, read_models
from autofit.runtime.server.applied_settings import find_unapplied, read_applied
from autofit.runtime.server.client import Answer, Client, RequestFailure
from autofit.runtime.server.launch_outcome import LaunchObservation, judge_launch
from autofit.runtime.server.server_process import RunningServer, start_server
from autofit.text_format import one_line
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.units import MIB

_LEAST_LOAD_LIMIT_S = 300.0
_SLOWEST_READ_BYTES_PER_S = 50 * MIB
_EXIT_WAIT_S = 5.0
_PROMPT = "Once upon a time"
_PREDICTED_TOKENS = 4
_PRESET_FLAG = "--models-preset"
_POLL_S = 0.1
_LONGEST_DETAIL = 300


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


def _load_limits(preset: Preset) -> Limits:
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
    candidate, limits = Candidate(preset.params), _load_limits(preset)
    plan = LaunchPlan(candidate=candidate, argv=tuple(argv), env=env, limits=limits)
    log = folder / "server.log"
    answer: Answer | RequestFailure | None = None
    with start_server(plan, runtime.dialect, log) as server:
        ready = server.wait_ready()
        props: Mapping[str, Any] = {}
        if ready is Readiness.READY:
            found = server.client.props()
            if isinstance(found, RequestFailure):
                answer = found
            else:
                props, answer = found, _ask_once(server.client, limits)
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


def _ask_once(client: Client, limits: Limits) -> Answer | RequestFailure:
    """Send one short request."""
    return client.complete(
        _PROMPT,
        _PREDICTED_TOKENS,
        prompt_limit_s=limits.prompt_s,
        generate_limit_s=limits.generate_s,
    )


def verify_router(
    file: Path, presets: Sequence[Preset], runtime: Runtime, folder: Path
) -> list[PresetCheck]:
    """Start a router with the file, compare its models' options, and ask each model once.

    Raises:
        UsageError: the program cannot be started here.
    """
    first, help_text = presets[0], presets[0].help
    name = "the router reads the file"
    if help_text is None or _PRESET_FLAG not in help_text:
        return [PresetCheck(name, None, "this runtime has no router")]
    flags = (_PRESET_FLAG, str(file), "--no-models-autoload")
    plan = LaunchPlan(
        candidate=Candidate({}),
        argv=(*first.wrapper, *first.command, *flags, *first.address),
        env=first.env,
        limits=_load_limits(first),
    )
    log = folder / "router.log"
    with start_server(plan, runtime.dialect, log) as server:
        is_ready = server.wait_ready() is Readiness.READY
        checks = [PresetCheck(name, passed=is_ready)]
        if is_ready:
            checks += _check_models(server, presets, runtime.dialect)
    if all(check.passed for check in checks):
        return checks
    evidence = _log_evidence(log, runtime.dialect)
    return [
        check if check.passed or check.detail else replace(check, detail=evidence)
        for check in checks
    ]


def _check_models(
    server: RunningServer, presets: Sequence[Preset], dialect: Dialect
) -> Iterator[PresetCheck]:
    statuses = _model_statuses(server)
    for preset in presets:
        model = section_name(preset)
        yield _check_options(preset, statuses.get(model))
        if model in statuses:
            yield _check_answer(server, preset, dialect)


def _model_statuses(server: RunningServer) -> dict[str, ModelStatus]:
    """Return the status of each model, by name; empty if the router does not list them."""
    models = server.client.request_json("/models")
    try:
        return {} if isinstance(models, RequestFailure) else read_models(models)
    except WrongAnswerError:
        return {}


def _check_options(preset: Preset, status: ModelStatus | None) -> PresetCheck:
    name = f"the router starts {section_name(preset)} with the options that were written"
    if status is None or preset.help is None:
        return PresetCheck(name, passed=False, detail="the router does not list it")
    argv = status.args[1:]
    found = differences(section_options(preset), argv, preset.help, preset.rules.ini.reserved)
    path = argv[argv.index("--model") + 1] if "--model" in argv[:-1] else "none"
    if path != str(preset.model_path):
        found.append(f"another model file: {path}")
    return PresetCheck(name, passed=not found, detail=one_line("; ".join(found)))


def differences(
    expected: Iterable[Option], argv: Sequence[str], help_text: HelpText, reserved: Iterable[str]
) -> list[str]:
    """Return the options that a router would add or miss, one line each.

    `argv` are a model's `status.args` in the router's `/models`, without the program. The order
    of options does not matter, nor do the `reserved` options, which the router sets itself.
    """
    ignored = {f"--{key}" for key in (*reserved, "model", "alias")}
    required = Counter(option.canonical for option in expected)
    found = Counter(
        option.canonical
        for option in parse_options(argv, help_text)
        if ignored.isdisjoint(option.flag.spellings)
    )
    lines = [f"missing: {name} {value or ''}".rstrip() for name, value in required - found]
    return lines + [f"added: {name} {value or ''}".rstrip() for name, value in found - required]


def _check_answer(server: RunningServer, preset: Preset, dialect: Dialect) -> PresetCheck:
    model, limits = section_name(preset), _load_limits(preset)
    name = f"{model} starts with these settings and answers a request"
    server.client.request_json("/models/load", {"model": model})
    deadline = time.monotonic() + limits.load_s
    while (status := _model_statuses(server).get(model, ModelStatus())).value != "loaded":
        if status.failed or server.process.poll() is not None:
            return PresetCheck(name, passed=False)
        if time.monotonic() > deadline:
            detail = f"not loaded within {limits.load_s:.0f} s"
            return PresetCheck(name, passed=False, detail=detail)
        time.sleep(_POLL_S)
    props = server.client.props(f"?model={quote(model, safe='')}")
    if isinstance(props, RequestFailure):
        return PresetCheck(name, passed=False, detail=one_line(props.detail)[:_LONGEST_DETAIL])
    changed = find_unapplied(Candidate(preset.params), read_applied(dialect, props))
    if changed is not None:
        return PresetCheck(name, passed=False, detail=one_line(changed.evidence))
    answer = _ask_once(server.client.for_model(model), limits)
    server.client.request_json("/models/unload", {"model": model})
    if isinstance(answer, Answer):
        return PresetCheck(name, passed=True)
    detail = one_line(answer.body or answer.detail)[:_LONGEST_DETAIL]
    return PresetCheck(name, passed=False, detail=detail)


def _log_evidence(log: Path, dialect: Dialect) -> str:
    with log.open("rb") as stream:
        diagnosis = diagnose(read_lines(stream), dialect, exit_status=1)
    kind = diagnosis.outcome.kind if diagnosis.outcome is not None else "failed"
    return one_line(f"{kind.replace('_', ' ')}: {diagnosis.evidence}")
