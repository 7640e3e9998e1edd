"""Whether llama-server's router would start the models of an INI file as meant."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autofit.presets.facts import PresetFacts
from autofit.presets.formats import ini
from autofit.presets.verify.trial_start import address, ask, limits
from autofit.presets.verify.verification import Check
from autofit.process import Ready
from autofit.runtime.diagnosis.diagnose import diagnose
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.server.applied_settings import find_unapplied, read_applied
from autofit.runtime.server.client import Answer
from autofit.runtime.server.server_process import RunningServer, start_server
from autofit.text_format import one_line
from autofit.trial.candidate import Candidate, LaunchPlan

_ROUTER = "--models-preset"
_POLL_S = 0.1


def verify(
    file: Path, presets: Sequence[PresetFacts], runtime: Runtime, folder: Path
) -> list[Check]:
    """Start a router with the file, compare what it would start, and ask each model once.

    Raises:
        UsageError: the program cannot be started here.
    """
    first, help_text = presets[0], presets[0].help
    name = "the router reads the file"
    if help_text is None or _ROUTER not in help_text:
        return [Check(name, None, "this runtime has no router")]
    flags = (_ROUTER, str(file), "--no-models-autoload")
    plan = LaunchPlan(
        candidate=Candidate({}),
        argv=(*first.wrapper, *first.command, *flags, *address(first)),
        env=first.env,
        limits=limits(first),
    )
    log = folder / "router.log"
    with start_server(plan, runtime.dialect, log) as server:
        if server.wait_ready(_never) is Ready.READY:
            checks = [Check(name, passed=True), *_models(server, presets, runtime.dialect)]
        else:
            checks = [Check(name, passed=False)]
    if all(check.passed for check in checks):
        return checks
    evidence = _evidence(log, runtime.dialect)
    return [
        check if check.passed or check.detail else Check(check.name, check.passed, evidence)
        for check in checks
    ]


def _models(
    server: RunningServer, presets: Sequence[PresetFacts], dialect: Dialect
) -> Iterator[Check]:
    shown = _shown(server)
    for facts in presets:
        model = ini.entry_name(facts)
        yield _as_meant(facts, shown.get(model))
        if model in shown:
            yield _answers(server, facts, dialect)


def _shown(server: RunningServer) -> dict[str, Mapping[str, Any]]:
    """The status of each model by its name."""
    models = server.client.ask("/models").get("data", ())
    return {model["id"]: model.get("status", {}) for model in models}


def _as_meant(facts: PresetFacts, status: Mapping[str, Any] | None) -> Check:
    model = ini.entry_name(facts)
    name = f"the router would start {model} with the options that were meant"
    if status is None or facts.help is None:
        return Check(name, passed=False, detail="the router does not list it")
    words = status.get("args", ())[1:]
    found = ini.differences(ini.ini_options(facts), words, facts.help, facts.ini.reserved)
    path = words[words.index("--model") + 1] if "--model" in words else "none"
    if path != str(facts.model_path):
        found.append(f"another model file: {path}")
    return Check(name, passed=not found, detail=one_line("; ".join(found)))


def _answers(server: RunningServer, facts: PresetFacts, dialect: Dialect) -> Check:
    model = ini.entry_name(facts)
    name = f"{model} starts as meant and answers a request"
    client, within = server.client.of_model(model), limits(facts)
    server.client.ask("/models/load", {"model": model})
    deadline = time.monotonic() + within.load_s
    while (status := _shown(server).get(model, {})).get("value") != "loaded":
        if status.get("failed") or server.process.poll() is not None:
            return Check(name, passed=False)
        if time.monotonic() > deadline:
            return Check(name, passed=False, detail=f"not loaded within {within.load_s:.0f} s")
        time.sleep(_POLL_S)
    props = server.client.ask(f"{dialect.endpoints.props}?model={quote(model, safe='')}")
    changed = find_unapplied(Candidate(facts.params), read_applied(dialect, props))
    if changed is not None:
        return Check(name, passed=False, detail=one_line(changed.evidence))
    answer = ask(client, within)
    server.client.ask("/models/unload", {"model": model})
    if isinstance(answer, Answer):
        return Check(name, passed=True)
    return Check(name, passed=False, detail=one_line(answer.body or answer.detail)[:300])


def _evidence(log: Path, dialect: Dialect) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        told = diagnose(lines, dialect, exit_status=1)
    kind = told.outcome.kind if told.outcome is not None else "failed"
    return one_line(f"{kind.replace('_', ' ')}: {told.evidence}")


def _never() -> None:
    """Nobody asks to stop but by an interrupt."""
