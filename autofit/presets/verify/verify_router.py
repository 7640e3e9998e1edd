"""Checks that llama-server's router starts the models of an INI file as they are written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from autofit.presets.command_options import Option, parse_options
from autofit.presets.formats.ini import section_name, section_options
from autofit.presets.preset import Preset
from autofit.presets.verify.preset_check import (
    PresetCheck,
    ask_once,
    load_limits,
    no_stop_request,
)
from autofit.process.managed_process import Readiness
from autofit.runtime.diagnosis.diagnose import diagnose
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.runtime.logs.log_line import read_lines
from autofit.runtime.server.answers import ModelStatus, WrongAnswerError, read_models
from autofit.runtime.server.applied_settings import find_unapplied, read_applied
from autofit.runtime.server.client import Answer, RequestFailure
from autofit.runtime.server.server_process import RunningServer, start_server
from autofit.text_format import one_line
from autofit.trial.candidate import Candidate, LaunchPlan

_PRESET_FLAG = "--models-preset"
_POLL_S = 0.1
_LONGEST_DETAIL = 300


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
        limits=load_limits(first),
    )
    log = folder / "router.log"
    with start_server(plan, runtime.dialect, log) as server:
        is_ready = server.wait_ready(no_stop_request) is Readiness.READY
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
    model, limits = section_name(preset), load_limits(preset)
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
    answer = ask_once(server.client.for_model(model), limits)
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
