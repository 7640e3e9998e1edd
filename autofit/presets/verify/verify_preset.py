"""Whether a preset's file does what was meant: read back, and started where that is possible.

Whatever is started here is stopped again, also when the user interrupts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.formats import env
from autofit.presets.verify import verify_compose, verify_llama_swap, verify_router
from autofit.presets.verify.trial_start import address, start
from autofit.presets.verify.verification import Check
from autofit.process import run, scrubbed_environment
from autofit.runtime.discovery.found_runtime import Runtime

_ANALYZER = "systemd-analyze"
_ANALYZE_LIMIT_S = 60.0


def verify(
    format_name: str, file: Path, presets: Sequence[PresetFacts], runtime: Runtime, folder: Path
) -> list[Check]:
    """Check a written file; logs of what is started go into the folder.

    Raises:
        UsageError: the program cannot be started here.
        KeyboardInterrupt: the user stopped it; nothing is left running.
    """
    several = _SEVERAL.get(format_name)
    if several is not None:
        return several(file, presets, runtime, folder)
    return _SINGLE[format_name](file, presets[0], runtime, folder)


def _shell(file: Path, facts: PresetFacts, runtime: Runtime, folder: Path) -> list[Check]:
    words = ["sh", str(file), *address(facts)]
    return [start(words, {}, facts, runtime, folder)]


def _args(file: Path, facts: PresetFacts, runtime: Runtime, folder: Path) -> list[Check]:
    words = shlex.split(_text(file))
    return [start([*words, *address(facts)], {}, facts, runtime, folder)]


def _json(file: Path, facts: PresetFacts, runtime: Runtime, folder: Path) -> list[Check]:
    document = json.loads(_text(file))
    words = [*document["argv"], *address(facts)]
    return [start(words, document["env"], facts, runtime, folder)]


def _env(file: Path, facts: PresetFacts, runtime: Runtime, folder: Path) -> list[Check]:
    sourced = ["sh", "-c", 'set -a; . "$0"; exec "$@"', str(file)]
    words = [*facts.wrapper, *facts.command, *env.left_over(facts), *address(facts)]
    return [start([*sourced, *words], {}, facts, runtime, folder)]


def _systemd(file: Path, facts: PresetFacts, runtime: Runtime, folder: Path) -> list[Check]:
    del facts, runtime, folder
    name = "systemd-analyze verify"
    try:
        words = [_ANALYZER, "verify", "--man=no", str(file)]
        done = run(words, env=scrubbed_environment({}), timeout_s=_ANALYZE_LIMIT_S)
    except UsageError:
        return [Check(name, None, f"there is no {_ANALYZER} here")]
    # What it says of other units is not ours.
    told = [line for line in done.stderr.splitlines() if file.name in line]
    return [Check(name, done.returncode == 0 and not done.timed_out, "; ".join(told))]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")


_SINGLE: Mapping[str, Callable[[Path, PresetFacts, Runtime, Path], list[Check]]] = {
    "shell": _shell,
    "args": _args,
    "json": _json,
    "env": _env,
    "systemd": _systemd,
}
_SEVERAL: Mapping[str, Callable[[Path, Sequence[PresetFacts], Runtime, Path], list[Check]]] = {
    "ini": verify_router.verify,
    "llama-swap": verify_llama_swap.verify,
    "compose": verify_compose.verify,
}
