"""Memory per device by the runtime's own planner, without loading weights.

llama.cpp's `llama-fit-params --fit-print on` builds the very graph that would run, but counts
logits for a whole ubatch where the server keeps one row a slot: `ubatch x n_vocab x 4` bytes
on the device of the output layer, 2 GiB for a ubatch of 2048 and 262,144 tokens. They cannot
be subtracted, since buffers are reused: the compute buffer is the larger of the logits and
the rest of the graph, and where the logits are larger they hide the rest. So the planner is
asked a second time, about a copy of the model with next to no vocabulary
(`copy_without_vocabulary`). The server's graph also selects rows, which takes up to two more
hidden states of `ubatch x n_embd x 4` bytes.

Measured with b11434: against the memory table of a server with two remote devices, 42
candidates, every number is equal but that of the output device, which is up to three hidden
states above, with pipeline parallelism seven, never below; on CUDA the planner alone was 1.6
hidden states below (454 MiB for 480).
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import platformdirs

from autofit.errors import UsageError
from autofit.model.gguf.header import read_header
from autofit.model.gguf.header_writer import write_copy_without_vocabulary
from autofit.runtime.command.argv_reader import parse_command
from autofit.runtime.command.argv_writer import spell_params
from autofit.runtime.dialect.dialect import EstimatorRules
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.runtime.discovery.program_inspector import ProgramInspector, run_program
from autofit.trial.candidate import Candidate, Params
from autofit.trial.measurement import ReportedMemory
from autofit.units import MIB

HOST = "host"
# llama.cpp's defaults, for params that a candidate leaves out.
_BATCH, _UBATCH = 2048, 512

DeviceSizes = Mapping[str, ReportedMemory]


@dataclass(slots=True)
class PlannerUsage:
    """How many questions a planner was put, and the seconds they took."""

    questions: int = 0
    seconds: float = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what happens within as one question."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.questions += 1
            self.seconds += time.monotonic() - began_s


class RuntimePlanner:
    """The planner of one runtime for one model; answers are kept in memory and on disk.

    Asked only while no server runs: it opens the devices, some 500 MiB each on CUDA.
    `cache` is the folder of kept answers; `asked` counts the questions that none answered.
    """

    def __init__(
        self,
        runtime: Runtime,
        model_path: Path,
        *,
        rpc: str = "",
        extra_args: Sequence[str] = (),
        cache: Path | None = None,
    ) -> None:
        self.runtime = runtime
        self.model_path = model_path
        self.rules = runtime.dialect.estimator
        self.command = runtime.companions.get(self.rules.companion) if self.rules else None
        self.rpc = rpc
        self.extra_args = tuple(extra_args)
        self.header = read_header(model_path)
        self.asked = PlannerUsage()
        self._help: HelpText | None = None
        folder = cache or platformdirs.user_cache_path("autofit") / "estimates"
        self._record = PredictionCache(
            folder / f"{runtime.fingerprint}-{self.header.digest}.jsonl"
        )

    def estimate(self, candidate: Candidate) -> DeviceSizes | None:
        """Model, context and compute MiB by device name, and of the `host`.

        None where the runtime has no planner, or it cannot plan this candidate. Not counted
        are a projector, a draft model, repacked weights and pools that grow at run time.

        Raises:
            UsageError: the planner cannot be started.
        """
        if self.rules is None or self.command is None:
            return None
        words, variables = self._words(self.rules, self.command, candidate)
        key = " ".join((*words, *(f"{name}={text}" for name, text in sorted(variables.items()))))
        parallel = candidate.get_int("parallel", 1)  # is not always among the words
        key = f"{key} parallel={parallel}"
        if key not in self._record:
            with self.asked.counting():
                sizes = self._ask(self.rules, words, variables)
                if sizes is not None and self.rules.counts_logits_of_ubatch:
                    sizes = self._without_logits(self.rules, candidate, words, variables, sizes)
            # Without a split, layers go by the memory that is free at the moment.
            self._record.put(key, sizes, is_lasting="tensor_split" in candidate.params)
        return self._record.get(key)

    def fitted(self, candidate: Candidate) -> Params | None:
        """What the runtime's own fit would choose now for what a candidate leaves open.

        None where the runtime has no planner, or it finds nothing that fits.

        Raises:
            UsageError: the planner cannot be started.
        """
        if self.rules is None or self.command is None:
            return None
        words, variables = self._words(self.rules, self.command, candidate, asks_sizes=False)
        model = (self.runtime.dialect.launch.model, str(self.model_path.absolute()))
        env = {**self.runtime.env, **variables}
        with self.asked.counting():
            finished = run_program((*self.command, *words, *model), env, self.rules.timeout_s)
        lines = finished.stdout.split("\n")
        answer = next((line for line in reversed(lines) if line.lstrip().startswith("-")), "")
        if finished.returncode or not answer:
            return None
        # Shell syntax, the quotes literal; builds before 2026 print overrides unquoted.
        argv = (*self.runtime.command, *shlex.split(answer))
        return parse_command(argv, self.runtime.dialect, self.runtime.help).params

    def _words(
        self,
        rules: EstimatorRules,
        command: tuple[str, ...],
        candidate: Candidate,
        *,
        asks_sizes: bool = True,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """What the planner is given but for the model, less what it does not know."""
        if self._help is None:
            ask = self.runtime.dialect.ask
            self._help = ProgramInspector(Path(command[0]), command).read_help(ask)
        launch = self.runtime.dialect.launch
        remote = (launch.rpc, self.rpc) if self.rpc and launch.rpc else ()
        words, variables = spell_params(self.runtime, candidate)
        given = self._help.filter_words((*words, *self.extra_args), self.runtime.help)
        return (*remote, *given, *(rules.words if asks_sizes else ())), variables

    def _ask(
        self,
        rules: EstimatorRules,
        words: tuple[str, ...],
        variables: Mapping[str, str],
        model: Path | None = None,
    ) -> DeviceSizes | None:
        path = str((model or self.model_path).absolute())
        argv = (*(self.command or ()), *words, self.runtime.dialect.launch.model, path)
        env = {**self.runtime.env, **variables}
        finished = run_program(argv, env, rules.timeout_s)
        rows = re.finditer(rules.row_pattern, finished.stdout, re.MULTILINE)
        sizes = {
            HOST if row["device"] == rules.host else row["device"]: ReportedMemory(
                model_mib=float(row["model"]),
                context_mib=float(row["context"]),
                compute_mib=float(row["compute"]),
            )
            for row in rows
        }
        return sizes if finished.returncode == 0 and HOST in sizes else None

    def _without_logits(
        self,
        rules: EstimatorRules,
        candidate: Candidate,
        words: tuple[str, ...],
        variables: Mapping[str, str],
        sizes: DeviceSizes,
    ) -> DeviceSizes:
        """The sizes with the server's few rows of logits instead of a ubatch of them."""
        try:
            with TemporaryDirectory(prefix="autofit-") as folder:
                copy = Path(folder) / "lean.gguf"
                write_copy_without_vocabulary(self.model_path, copy)
                lean = self._ask(rules, words, variables, copy)
        except (OSError, UsageError):
            lean = None
        if lean is None or lean.keys() != sizes.keys():
            return sizes  # too large for a vocabulary of any size
        output = _output_device(sizes, lean)
        rows = min(
            candidate.get_int("ubatch", _UBATCH),
            candidate.get_int("batch", _BATCH),
            candidate.get_int("context", _BATCH) or _BATCH,
        )
        logits_mib = candidate.get_int("parallel", 1) * self.header.n_vocab * 4 / MIB
        hidden_mib = rows * self.header.n_embd * 4 / MIB
        row, rest = sizes[output], lean[output]
        needed = max(rest.compute_mib, logits_mib) + 2 * hidden_mib
        if output != HOST and not rest.model_mib and not rest.context_mib:
            needed = logits_mib + 1  # it holds nothing but the output layer
        return {**sizes, output: replace(row, compute_mib=needed)}


def _output_device(sizes: DeviceSizes, lean: DeviceSizes) -> str:
    """The device of the output layer: the one whose weights shrink with the vocabulary.

    The host's shrink always, by the token embedding.
    """
    lost = {name: row.model_mib - lean[name].model_mib for name, row in sizes.items()}
    devices = [name for name in lost if name != HOST and lost[name] > 0]
    return max(devices, key=lost.__getitem__, default=HOST)


class PredictionCache:
    """Sizes by question. A line is added for each answer; a torn or strange line is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, DeviceSizes | None] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return
        for line in lines:
            try:
                key, sizes = json.loads(line)
                self._known[key] = {name: ReportedMemory(**row) for name, row in sizes.items()}
            except (ValueError, TypeError, AttributeError):
                continue

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str) -> DeviceSizes | None:
        """The answer to a question that was put."""
        return self._known.get(key)

    def put(self, key: str, sizes: DeviceSizes | None, *, is_lasting: bool) -> None:
        """Keep an answer, for later runs too if it is lasting; None was no answer."""
        self._known[key] = sizes
        if sizes is None or not is_lasting:
            return
        line = json.dumps([key, {name: asdict(row) for name, row in sizes.items()}])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            pass  # a cache that cannot be written costs time only
