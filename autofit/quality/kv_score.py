"""What a KV type costs by the runtime's own program: two launches beside the interview.

Both have the placement of what is scored; only the KV type differs, so that nothing else is.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, replace

from autofit.model.sizes.kv_cache import KvTypes, kv_types
from autofit.runtime.dialect.dialect import DivergenceRules
from autofit.runtime.planner.divergence_program import (
    Divergence,
    DivergenceLauncher,
    has_divergence_program,
    kept_bytes,
)
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.request_plan import plan_without_measurement
from autofit.runtime.server.send_requests import read_prompt_text
from autofit.session.finalist import Finalist
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.purpose import TrialPurpose

# Both lie in the study's folder: a folder for temporary files may lie in memory.
_BASE, _TEXT = "kept-chances.bin", "kept-chances.txt"
_MOST_CHUNKS = 8
_MOST_BYTES = 512 << 20


def type_words(types: KvTypes) -> str:
    """KV types for people: one name where both are the same."""
    return "/".join(dict.fromkeys(types))


def kv_words(candidate: Candidate) -> str:
    """The KV types of a candidate, for people."""
    return type_words(kv_types(candidate))


@dataclass(frozen=True, slots=True)
class KvScore:
    """What the runtime's own program told, or in words why it told nothing.

    `words` are empty where there is nothing to say: no such program, or a score.
    """

    divergence: Divergence | None = None
    program: str = ""
    words: str = ""


def kv_score(
    runner: TrialRunner,
    task: Task,
    narrow: Finalist,
    wide: Candidate,
    *,
    expected_s: float,
) -> KvScore:
    """Hold the chances of next tokens under narrow KV types against those of wide ones.

    Args:
        runner: of the run; its launches are counted in the phase prove.
        task: the task.
        narrow: with the KV types to be scored.
        wide: the same with the KV types of the reference.
        expected_s: about how long a launch takes; without time for two there is no score.

    Raises:
        Interrupted: the user stopped the run.
    """
    launcher = runner.launching
    rules = task.runtime.dialect.divergence
    if (
        not isinstance(launcher, Launcher)
        or rules is None
        or not has_divergence_program(launcher.runtime)
    ):
        return KvScore()
    left_s = runner.budget.left_for_s("prove")
    if left_s is not None and left_s < 2 * expected_s:
        return KvScore(words="no time was left to score the KV type over all tokens")
    folder = runner.study.path
    chunks = _chunks(rules, task.inventory.n_vocab)
    needed = 2 * chunks * kept_bytes(rules, task.inventory.n_vocab)
    if shutil.disk_usage(folder).free < needed:
        return KvScore(words=f"no {needed >> 20} MiB of disk were free to score the KV type")
    text = runner.study.write_output(_TEXT, read_prompt_text(task.workload))
    keeping = DivergenceLauncher(
        launcher=launcher, base=folder / _BASE, text=text, chunks=chunks, keeps=True
    )
    # An interruption leaves the files where a resumed run finds them.
    found = _scored(runner, keeping, narrow, wide)
    for path in (keeping.base, text):
        with contextlib.suppress(OSError):
            path.unlink()
    return found


def _scored(
    runner: TrialRunner, keeping: DivergenceLauncher, narrow: Finalist, wide: Candidate
) -> KvScore:
    program = keeping.program
    # Kept chances are gone after their score, so those of another KV type are kept anew.
    types = kv_types(narrow.candidate)
    kept = replace(runner, launching=keeping).run(
        TrialPurpose("prove", "kl_base", kv_types=types),
        wide,
        plan_without_measurement(),
        layout=narrow.layout,
        is_verbatim=narrow.is_verbatim,
    )
    if not kept.is_completed:
        return KvScore(words=f"{program} told nothing: {kept.outcome.evidence}")
    scoring = replace(keeping, keeps=False)
    scored = replace(runner, launching=scoring).run(
        TrialPurpose("prove", "kl_score", kv_types=types),
        narrow.candidate,
        plan_without_measurement(),
        layout=narrow.layout,
        is_verbatim=narrow.is_verbatim,
    )
    found = scoring.read(runner.study.log_path(scored.number)) if scored.is_completed else None
    if found is None:
        return KvScore(words=f"{program} told nothing: {scored.outcome.evidence}")
    return KvScore(found, program)


def _chunks(rules: DivergenceRules, n_vocab: int) -> int:
    """As many pieces of text as the file of kept chances has room for."""
    return max(1, min(_MOST_CHUNKS, _MOST_BYTES // kept_bytes(rules, n_vocab)))
