"""How far the chances of next tokens move, by the runtime's own program for it.

llama.cpp's `llama-perplexity --kl-divergence` compares the whole distribution at every token
of a text, where a server tells but the likeliest. It loads the weights: each run is a launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autofit.machine.memory_watcher import used_mib, wait_for_release
from autofit.process import ManagedProcess, scrubbed_environment
from autofit.runtime.command.argv_writer import find_unsupported, spell_params
from autofit.runtime.diagnosis.diagnose import diagnose
from autofit.runtime.dialect.dialect import DivergenceRules
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.runtime.discovery.program_inspector import ProgramInspector
from autofit.runtime.server.launcher import Launcher, LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Completed, Crashed, Outcome, Rejected, Stage, TimedOut

# It keeps logits for every token of a ubatch, 0.3 GiB for 512 tokens and a large vocabulary.
_UBATCH = 128
_POLL_S = 0.5
_RELEASE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """What the program told of `tokens` tokens: Kullback-Leibler divergence in nats.

    `agreement` is the share of tokens of which the likeliest stayed the same.
    """

    tokens: int
    agreement: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceLauncher:
    """Runs the program for candidates, in a launch of its own.

    `base` is the file of kept chances: written where it `keeps`, else held against the
    candidate's. `text` is the file of the text, `chunks` how many pieces of it are taken.
    """

    launcher: Launcher
    base: Path
    text: Path
    chunks: int
    keeps: bool

    @property
    def program(self) -> str:
        """The name of the program, for people."""
        command = _command(self.launcher.runtime)
        return Path(command[0]).name if command else ""

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool = False, as_served: bool = True
    ) -> LaunchPlan | Rejected:
        """Return the command for a candidate, or why the program cannot be given it.

        It computes what the server computes, but for a short context and small batches. With
        `is_verbatim` it places layers itself and gets the other words of the user's command.
        """
        del as_served
        launcher = self.launcher
        runtime, rules = launcher.runtime, launcher.runtime.dialect.divergence
        command = _command(runtime)
        if rules is None or command is None:
            return Rejected("plan", "the runtime has no program that scores chances")
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
        argv = (
            *launcher.wrapper,
            *command,
            *remote,
            *(launch.model, str(launcher.model_path.absolute())),
            *_help(runtime, command).filter_words(given, runtime.help),
            *(self._filled(word) for word in (rules.keep if self.keeps else rules.score)),
        )
        env = {**runtime.env, **launch.env, **variables, **launcher.env}
        return LaunchPlan(candidate, argv, env, launcher.limits)

    def _filled(self, word: str) -> str:
        named = {"base": self.base, "text": self.text, "chunks": self.chunks}
        return re.sub(r"\{(\w+)\}", lambda found: str(named.get(found[1], found[0])), word)

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
        check_stop: Callable[[], None],
    ) -> LaunchResult:
        """Run the program to its end and wait until devices have their memory back.

        Raises:
            AutofitError: the run cannot go on.
            KeyboardInterrupt, Interrupted: the user stopped it; nothing is left running.
        """
        del request_plan
        before = used_mib(self.launcher.memory)
        limit_s = plan.limits.load_s + plan.limits.prompt_s
        on_stage("load")
        with ManagedProcess.start(
            plan.argv,
            env=scrubbed_environment(
                plan.env, also_remove=self.launcher.runtime.dialect.variables
            ),
            log_path=log_path,
            grace_s=plan.limits.stop_s,
        ) as process:

            def is_stopped() -> bool:
                check_stop()
                return False

            process.wait_ready(is_stopped, deadline_s=limit_s, poll_s=_POLL_S)
            status = process.poll()
        release = wait_for_release(self.launcher.memory, before, limit_s=_RELEASE_LIMIT_S)
        outcome = self._outcome(log_path, status, limit_s)
        return LaunchResult(outcome, notes=(release.notice,) if release.notice else ())

    def _outcome(self, log_path: Path, status: int | None, limit_s: float) -> Outcome:
        if status is None:
            return TimedOut("prompt", f"not done within {limit_s:.0f} s", limit_s)
        is_done = self.base.exists() if self.keeps else self.read(log_path) is not None
        if status == 0 and is_done:
            return Completed()
        dialect = self.launcher.runtime.dialect
        with log_path.open(encoding="utf-8", errors="replace") as lines:
            told = diagnose(lines, dialect, exit_status=status)
        if told.outcome is not None and told.is_failure:
            return told.outcome
        text = f"{self.program} ended with status {status}: {told.evidence}"
        return Crashed(told.stage, text, exit_status=status)

    def read(self, log_path: Path) -> Divergence | None:
        """What a run that scored has told; None where it told nothing."""
        rules = self.launcher.runtime.dialect.divergence
        try:
            text = log_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return read_divergence(text, rules) if rules else None


def read_divergence(text: str, rules: DivergenceRules) -> Divergence | None:
    """Read the program's answer; None where it is none."""
    found = {
        name: re.search(pattern, text, re.MULTILINE)
        for name, pattern in (
            ("chunks", rules.chunks_pattern),
            ("mean", rules.mean_pattern),
            ("most", rules.most_pattern),
            ("same", rules.same_pattern),
        )
    }
    chunks, mean, most, same = found.values()
    if chunks is None or mean is None or most is None or same is None:
        return None
    try:
        return Divergence(
            # The first half of a piece gives the context, the last token has no next one.
            tokens=int(chunks["chunks"]) * (rules.context - rules.context // 2 - 1),
            agreement=float(same["percent"]) / 100,
            mean=float(mean["nats"]),
            most=float(most["nats"]),
        )
    except ValueError:
        return None


def has_divergence_program(runtime: Runtime) -> bool:
    """Whether the runtime has a program that scores chances."""
    return _command(runtime) is not None


def kept_bytes(rules: DivergenceRules, n_vocab: int) -> int:
    """The size of the file of kept chances for one piece of text: two bytes a token and place."""
    return (rules.context - rules.context // 2) * (2 * n_vocab + 16)


def _command(runtime: Runtime) -> tuple[str, ...] | None:
    rules = runtime.dialect.divergence
    return runtime.companions.get(rules.companion) if rules else None


def _help(runtime: Runtime, command: tuple[str, ...]) -> HelpText:
    ask = runtime.dialect.ask
    return ProgramInspector(Path(command[0]), command).read_help(ask)
