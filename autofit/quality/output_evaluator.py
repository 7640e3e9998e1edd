"""Evaluation of the answers of candidates against those of the baseline, by launches.

A check of narrow KV types takes four launches: one of the reference, one of the candidate, and
two of the runtime's own program for it, if it has one. Each answer is reused for other
candidates of the run: the reference is the same, and the effect of a KV type on answers does not
depend on the placement of layers.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, KvTypes, kv_types
from autofit.quality.answer_check import (
    AnswerCheck,
    ProgramScore,
    has_narrow_kv,
    judge_answers,
)
from autofit.quality.prompt_set import Answers, PromptSet, collect_answers
from autofit.runtime.dialect.dialect import DivergenceRules
from autofit.runtime.planner.divergence_program import (
    DivergenceLauncher,
    base_file_bytes,
    has_divergence_program,
)
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.request_plan import plan_without_measurement
from autofit.runtime.server.send_requests import read_prompt_text
from autofit.session.finalist import Finalist
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.parameter_groups import KV_TYPE_PARAMS
from autofit.trial.purpose import Subject, TrialPurpose

_REFERENCE = TrialPurpose("prove", "reference_answers", subject="baseline")
# Both files are in the study's folder: the system's temporary folder may be in RAM.
_BASE_FILE, _TEXT_FILE = "kept-chances.bin", "kept-chances.txt"
_MAX_CHUNKS = 8
_MAX_BASE_BYTES = 512 << 20


@dataclass(slots=True)
class OutputEvaluator:
    """An evaluator that compares the answers of candidates with those of the baseline.

    It launches each of them once. The reference is the baseline with an f16 KV cache. If a
    candidate's KV cache has f16 too, the answers must be the same. If it is narrower, the answers
    get a score, which includes the retrieval of records planted over the whole context. If the
    baseline cannot be launched, the reference is the candidate with an f16 KV cache, on the
    devices or else in host memory.
    """

    runner: TrialRunner
    task: Task
    baseline: Finalist
    _checks: dict[str, AnswerCheck] = field(default_factory=dict)
    # Answers and launch seconds by candidate, layout and whether retrieval tasks were included.
    _asked: dict[tuple[str, str, bool], tuple[Answers | None, float]] = field(default_factory=dict)
    _scores: dict[KvTypes, ProgramScore] = field(default_factory=dict)

    def servers_needed(self, candidate: Candidate) -> int:
        """Return how many servers a check of a candidate still has to launch."""
        if candidate.key in self._checks:
            return 0
        reference = _with_default_kv(self.baseline)
        known = self._known(reference, has_retrieval=has_narrow_kv(candidate))
        return 1 if known and known[0] else 2

    def has_answers(self, candidate: Candidate) -> bool:
        """Return whether the study has a candidate's answers, of this run or an earlier one."""
        if any(key == candidate.key for key, _, _ in self._asked):
            return True
        return self.runner.is_known(TrialPurpose("prove", "answers"), candidate)

    def check(self, finalist: Finalist, subject: Subject = "winner") -> AnswerCheck:
        """Judge a finalist's answers, after launches (phase prove) for those that are missing.

        Raises:
            Interrupted: the user stopped the run.
        """
        key = finalist.candidate.key
        if key not in self._checks:
            self._checks[key] = self._check(finalist, subject)
        return self._checks[key]

    def _check(self, finalist: Finalist, subject: Subject) -> AnswerCheck:
        may_differ = has_narrow_kv(finalist.candidate)
        reference, reference_name = None, "no reference"
        for one, name, purpose in self._references(finalist, subject):
            reference_name = name
            reference, _ = self._ask(one, purpose, has_retrieval=may_differ)
            if reference is not None:
                break
        other, by_program = None, None
        if reference is not None:
            purpose = TrialPurpose("prove", "answers", subject=subject)
            other, seconds = self._ask(finalist, purpose, has_retrieval=may_differ)
            if may_differ and other is not None:
                by_program = self._program_score(finalist, launch_s=seconds)
        return judge_answers(
            *(reference, other),
            reference_name=reference_name,
            may_differ=may_differ,
            is_sparse=self.task.inventory.is_moe,
            by_program=by_program,
        )

    def _ask(
        self, finalist: Finalist, purpose: TrialPurpose, *, has_retrieval: bool
    ) -> tuple[Answers | None, float]:
        """Return a candidate's answers, and the seconds of a launch for them."""
        known = self._known(finalist, has_retrieval=has_retrieval)
        if known is not None:
            return known
        workload = self.task.workload
        prompts = PromptSet(workload, workload.slot_context, has_retrieval=has_retrieval)
        trial, answers = collect_answers(
            *(self.runner, prompts, purpose, finalist.candidate, plan_without_measurement()),
            layout=finalist.layout,
            is_verbatim=finalist.is_verbatim,
        )
        asked = answers, trial.seconds
        self._asked[finalist.candidate.key, finalist.layout, has_retrieval] = asked
        return asked

    def _known(
        self, finalist: Finalist, *, has_retrieval: bool
    ) -> tuple[Answers | None, float] | None:
        """Return earlier answers of a candidate, or None if they are to fewer prompts."""
        key = finalist.candidate.key, finalist.layout
        exact = self._asked.get((*key, has_retrieval))
        more = self._asked.get((*key, True))
        if exact is not None or more is None:
            return exact
        answers, seconds = more
        return (replace(answers, tasks=(), texts=()) if answers else None), seconds

    def _program_score(self, finalist: Finalist, *, launch_s: float) -> ProgramScore:
        types = kv_types(finalist.candidate)
        if types not in self._scores:
            wide = _with_default_kv(finalist).candidate
            self._scores[types] = score_kv_types(
                self.runner, self.task, finalist, wide, launch_s=launch_s
            )
        return self._scores[types]

    def _references(
        self, finalist: Finalist, subject: Subject
    ) -> Iterator[tuple[Finalist, str, TrialPurpose]]:
        """Yield candidates with an f16 KV cache, with names for users, in order of preference."""
        own = _with_default_kv(self.baseline)
        suffix = f" with {DEFAULT_KV_TYPE} KV"
        yield own, "the baseline" + suffix * (own != self.baseline), _REFERENCE
        wide = _with_default_kv(finalist)
        if wide.candidate != finalist.candidate:
            purpose = replace(_REFERENCE, subject=subject)
            name = f"{'a' if subject == 'finalist' else 'the'} {subject}{suffix}"
            yield wide, name, purpose
            if self.task.runtime.supports("kv_offload", value=False):
                on_host = wide.candidate.with_params(kv_offload=False)
                yield replace(wide, candidate=on_host), f"{name} in host memory", purpose


def score_kv_types(
    runner: TrialRunner, task: Task, narrow: Finalist, wide: Candidate, *, launch_s: float
) -> ProgramScore:
    """Score narrow KV types by the runtime's own program, in two launches.

    Both launches have the same placement, so that only the KV types differ. They count in the
    phase prove. `narrow` has the KV types to score, `wide` those of the reference. Without time
    for two launches of `launch_s` seconds there is no score.

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
        return ProgramScore()
    left_s = runner.budget.left_for_s("prove")
    if left_s is not None and left_s < 2 * launch_s:
        return ProgramScore(failure="KV type not scored over all tokens: budget used up")
    folder = runner.study.path
    chunks = _count_chunks(rules, task.inventory.n_vocab)
    needed = 2 * chunks * base_file_bytes(rules, task.inventory.n_vocab)
    if shutil.disk_usage(folder).free < needed:
        reason = f"it needs {needed >> 20} MiB of free disk"
        return ProgramScore(failure=f"KV type not scored over all tokens: {reason}")
    text = runner.study.write_output(_TEXT_FILE, read_prompt_text(task.workload))
    base = DivergenceLauncher(
        launcher=launcher, base=folder / _BASE_FILE, text=text, chunks=chunks, is_reference=True
    )
    # An interruption leaves the files, so that a resumed run finds them.
    score = _launch_program(runner, base, narrow, wide)
    for path in (base.base, text):
        with contextlib.suppress(OSError):
            path.unlink()
    return score


def _launch_program(
    runner: TrialRunner, base: DivergenceLauncher, narrow: Finalist, wide: Candidate
) -> ProgramScore:
    # The probabilities of the base are deleted after a score, so each pair of types has its own.
    types = kv_types(narrow.candidate)
    kept = replace(runner, launching=base).run(
        TrialPurpose("prove", "kl_base", kv_types=types),
        wide,
        plan_without_measurement(),
        layout=narrow.layout,
        is_verbatim=narrow.is_verbatim,
    )
    if not kept.is_completed:
        return ProgramScore(failure=f"{base.program} gave no score: {kept.outcome.evidence}")
    scoring = replace(base, is_reference=False)
    scored = replace(runner, launching=scoring).run(
        TrialPurpose("prove", "kl_score", kv_types=types),
        narrow.candidate,
        plan_without_measurement(),
        layout=narrow.layout,
        is_verbatim=narrow.is_verbatim,
    )
    found = scoring.read(runner.study.log_path(scored.number)) if scored.is_completed else None
    if found is None:
        return ProgramScore(failure=f"{base.program} gave no score: {scored.outcome.evidence}")
    return ProgramScore(found, base.program)


def _count_chunks(rules: DivergenceRules, n_vocab: int) -> int:
    """Return the number of text chunks whose reference probabilities fit into the largest file."""
    return max(1, min(_MAX_CHUNKS, _MAX_BASE_BYTES // base_file_bytes(rules, n_vocab)))


def _with_default_kv(finalist: Finalist) -> Finalist:
    changes = {
        name: DEFAULT_KV_TYPE
        for name, kind in zip(KV_TYPE_PARAMS, kv_types(finalist.candidate), strict=True)
        if kind != DEFAULT_KV_TYPE
    }
    return replace(finalist, candidate=finalist.candidate.with_params(**changes))
