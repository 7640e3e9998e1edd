"""Divergence of next-token probabilities, as the runtime's own program measures it.

llama.cpp's `llama-perplexity --kl-divergence` compares the whole distribution at every token
of a text. A server only reports the most probable tokens. The program loads the weights, so
each run is a launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autofit.input_files import read_input
from autofit.runtime.command.argv_writer import find_unsupported, spell_params
from autofit.runtime.command.redaction import (
    redact_arguments,
    redact_variables,
    redact_wrapper,
)
from autofit.runtime.diagnosis.diagnose import diagnose
from autofit.runtime.dialect.dialect import DivergenceRules
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.program_inspector import read_companion_help
from autofit.runtime.logs.log_line import read_lines
from autofit.runtime.server.launcher import Launcher, LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.runtime.server.server_process import start_planned
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Completed, Crashed, Outcome, Rejected, Stage, TimedOut

# The program keeps logits for every token of a ubatch: 0.3 GiB for 512 tokens and a large
# vocabulary.
_UBATCH = 128
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Divergence:
    """Kullback-Leibler divergence in nats over `tokens` tokens.

    `agreement` is the share of tokens for which the most probable token is the same.
    """

    tokens: int
    agreement: float
    mean: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceLauncher:
    """A launcher of the divergence program; each candidate gets its own launch.

    `base` is the file of the reference's probabilities: a run that `is_reference` writes it,
    and others are compared with it. `text` is the file of the text, of which `chunks` pieces
    are used.
    """

    launcher: Launcher
    base: Path
    text: Path
    chunks: int
    is_reference: bool

    @property
    def program(self) -> str:
        """The name of the program, for messages."""
        command = _find_command(self.launcher.runtime)
        return Path(command[0]).name if command else ""

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool = False, as_served: bool = True
    ) -> LaunchPlan | Rejected:
        """Return the command for a candidate, or the outcome if it is not supported.

        The program computes what the server computes, with a short context and small batches.
        With `is_verbatim` it places layers itself and gets the other words of the user's own
        command.
        """
        del as_served
        launcher = self.launcher
        runtime, rules = launcher.runtime, launcher.runtime.dialect.divergence
        command = _find_command(runtime)
        if rules is None or command is None:
            return Rejected("plan", "the runtime has no program that measures divergence")
        problem = find_unsupported(runtime, candidate)
        if problem:
            return problem.outcome
        ubatch = min(candidate.get_int("ubatch", _UBATCH), _UBATCH)
        short = candidate.with_params(
            context=rules.context, batch=rules.context, ubatch=ubatch, parallel=1
        )
        words, variables = spell_params(runtime, short)
        launch = runtime.dialect.launch
        groups = (*(() if is_verbatim else launch.always), *launch.observe)
        fixed = (word for group in groups for word in group)
        own = launcher.baseline_args if is_verbatim else ()
        given = (*words, *fixed, *own, *launcher.extra_args)
        remote = (launch.rpc, launcher.rpc) if launcher.rpc and launch.rpc else ()
        task = rules.keep if self.is_reference else rules.score
        start = (*command, *remote, launch.model, str(launcher.model_path.absolute()))
        help_text = read_companion_help(runtime, command)
        accepted = help_text.filter_words(given, runtime.help)
        end = tuple(self._fill_in(word) for word in task)
        env = {**runtime.env, **launch.env, **variables}
        return LaunchPlan(
            candidate,
            (*launcher.wrapper, *start, *accepted, *end),
            {**env, **launcher.env},
            launcher.limits,
            shown_argv=(
                *redact_wrapper(launcher.wrapper),
                *start,
                *redact_arguments(accepted, help_text),
                *end,
            ),
            shown_env={**env, **redact_variables(launcher.env)},
        )

    def _fill_in(self, word: str) -> str:
        values = {"base": self.base, "text": self.text, "chunks": self.chunks}
        return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), word)

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
    ) -> LaunchResult:
        """Run the program to its end and wait for the devices' memory.

        Raises:
            AutofitError: the run cannot continue.
            KeyboardInterrupt: the user stopped it; no process is left running.
        """
        del request_plan
        self.launcher.check_files()
        self.launcher.read_used_mib()
        limit_s = plan.limits.load_s + plan.limits.prompt_s
        on_stage("load")
        with start_planned(plan, self.launcher.runtime.dialect, log_path) as process:
            # The program is done when it exits.
            process.wait_ready(lambda: False, deadline_s=limit_s, poll_s=_POLL_S)
            status = process.poll()
        note = self.launcher.wait_for_release()
        outcome = self._find_outcome(log_path, status, limit_s)
        return LaunchResult(outcome, notes=(note,) if note else ())

    def _find_outcome(self, log_path: Path, status: int | None, limit_s: float) -> Outcome:
        if status is None:
            return TimedOut("prompt", f"not finished within {limit_s:.0f} s", limit_s)
        is_done = self.base.exists() if self.is_reference else self.read(log_path) is not None
        if status == 0 and is_done:
            return Completed()
        with log_path.open("rb") as log:
            diagnosis = diagnose(
                read_lines(log), self.launcher.runtime.dialect, exit_status=status
            )
        if diagnosis.outcome is not None and diagnosis.is_failure:
            return diagnosis.outcome
        text = f"{self.program} ended with status {status}: {diagnosis.evidence}"
        return Crashed(diagnosis.stage, text, exit_status=status)

    def read(self, log_path: Path) -> Divergence | None:
        """Return the divergence in the log of a run, or None if it has none."""
        rules = self.launcher.runtime.dialect.divergence
        try:
            text = read_input(log_path).decode("utf-8", errors="replace")
        except OSError:
            return None
        return read_divergence(text, rules) if rules else None


def read_divergence(text: str, rules: DivergenceRules) -> Divergence | None:
    """Return the divergence in the program's output, or None if the output is incomplete."""
    patterns = rules.chunks_pattern, rules.mean_pattern, rules.most_pattern, rules.same_pattern
    chunks, mean, maximum, same = (re.search(one, text, re.MULTILINE) for one in patterns)
    if chunks is None or mean is None or maximum is None or same is None:
        return None
    try:
        return Divergence(
            # The first half of a piece is context; the last token has no next one.
            tokens=int(chunks["chunks"]) * (rules.context - rules.context // 2 - 1),
            agreement=float(same["percent"]) / 100,
            mean=float(mean["nats"]),
            maximum=float(maximum["nats"]),
        )
    except ValueError:
        return None


def has_divergence_program(runtime: Runtime) -> bool:
    """Return whether the runtime has a program that measures divergence."""
    return _find_command(runtime) is not None


def base_file_bytes(rules: DivergenceRules, n_vocab: int) -> int:
    """Return the size of the reference's file for one piece of text.

    It has two bytes for each token of the vocabulary at each scored position.
    """
    return (rules.context - rules.context // 2) * (2 * n_vocab + 16)


def _find_command(runtime: Runtime) -> tuple[str, ...] | None:
    rules = runtime.dialect.divergence
    return runtime.companions.get(rules.companion) if rules else None
