"""Memory per device as the runtime's own planner predicts it, without loading weights.

llama.cpp's `llama-fit-params --fit-print on` builds the graph that would run, but counts
logits for a whole ubatch while the server keeps one row per slot: `ubatch x n_vocab x 4` bytes
on the device of the output layer, 2 GiB for a ubatch of 2048 and 262,144 tokens. They cannot
be subtracted, because buffers are reused: the compute buffer is the larger of the logits and
the rest of the graph. So the planner runs a second time on a copy of the model with almost no
vocabulary (`write_copy_without_vocabulary`). The server's graph also selects rows, which needs
up to two more hidden states of `ubatch x n_embd x 4` bytes.

Measured with b11434: compared with the memory table of a server with two remote devices, over
42 candidates, every number is equal except for the output device. It is up to three hidden
states too high (seven with pipeline parallelism) and never too low. On CUDA the planner alone
was 1.6 hidden states too low (454 MiB instead of 480).
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import platformdirs

from autofit.errors import UsageError
from autofit.input_files import parse_json, read_input
from autofit.model.gguf.header import read_header
from autofit.model.gguf.header_writer import write_copy_without_vocabulary
from autofit.runtime.command.argv_reader import parse_command
from autofit.runtime.command.argv_writer import spell_params
from autofit.runtime.dialect.dialect import EstimatorRules
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.program_inspector import read_companion_help, run_program
from autofit.trial.candidate import Candidate, Params
from autofit.trial.device import HOST_NAME
from autofit.trial.measurement import ReportedMemory
from autofit.units import MIB

# llama.cpp's defaults for parameters that a candidate does not set.
_BATCH, _UBATCH = 2048, 512

DeviceSizes = Mapping[str, ReportedMemory]


@dataclass(slots=True)
class PlannerUsage:
    """The number of runs of a planner, and the seconds they took."""

    runs: int = 0
    seconds: float = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the block as one run."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.runs += 1
            self.seconds += time.monotonic() - began_s


class RuntimePlanner:
    """The planner of a runtime for one model; its predictions are cached.

    Use it only while no server runs: it opens the devices, which takes some 500 MiB each on
    CUDA. `cache` is the folder of the cache; `usage` counts the runs.
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
        self.usage = PlannerUsage()
        folder = cache or platformdirs.user_cache_path("autofit") / "estimates"
        name = f"{runtime.fingerprint}-{self.header.digest}.jsonl"
        self._cache = PredictionCache(folder / name)

    def predict_memory(self, candidate: Candidate) -> DeviceSizes | None:
        """Return model, context and compute MiB by device name, and of the `host`.

        The result is None if the runtime has no planner, or if it cannot plan this candidate. A
        projector, a draft model, repacked weights and pools that grow at run time are not
        included.

        Raises:
            UsageError: the planner cannot be started.
        """
        if self.rules is None or self.command is None:
            return None
        words, variables = self._spell(self.command, candidate)
        words = (*words, *self.rules.words)
        key = " ".join((*words, *(f"{name}={text}" for name, text in sorted(variables.items()))))
        parallel = candidate.get_int("parallel", 1)  # the words do not always contain it
        key = f"{key} parallel={parallel}"
        if key not in self._cache:
            with self.usage.counting():
                sizes = self._run(self.rules, words, variables, self.model_path)
                if sizes is not None and self.rules.counts_logits_of_ubatch:
                    sizes = self._correct_logits(self.rules, candidate, words, variables, sizes)
            # Without a split, the placement of layers depends on the memory that is free now.
            self._cache.put(key, sizes, is_lasting="tensor_split" in candidate.params)
        return self._cache.get(key)

    def fit(self, candidate: Candidate) -> Params | None:
        """Return the values that the runtime's own fit would choose now for unset parameters.

        The result is None if the runtime has no planner, or if nothing fits.

        Raises:
            UsageError: the planner cannot be started.
        """
        if self.rules is None or self.command is None:
            return None
        words, variables = self._spell(self.command, candidate)
        with self.usage.counting():
            output = self._run_planner(self.rules, words, variables, self.model_path) or ""
        lines = [line for line in output.split("\n") if line.lstrip().startswith("-")]
        if not lines:
            return None
        # It prints shell syntax with literal quotes; builds before 2026 do not quote overrides.
        argv = (*self.runtime.command, *shlex.split(lines[-1]))
        return parse_command(argv, self.runtime.dialect, self.runtime.help).params

    def _spell(
        self, command: tuple[str, ...], candidate: Candidate
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the words and variables of a candidate that the planner accepts."""
        launch = self.runtime.dialect.launch
        remote = (launch.rpc, self.rpc) if self.rpc and launch.rpc else ()
        words, variables = spell_params(self.runtime, candidate)
        help_text = read_companion_help(self.runtime, command)
        accepted = help_text.filter_words((*words, *self.extra_args), self.runtime.help)
        return (*remote, *accepted), variables

    def _run_planner(
        self,
        rules: EstimatorRules,
        words: Sequence[str],
        variables: Mapping[str, str],
        model_path: Path,
    ) -> str | None:
        """Return the planner's output, or None if it failed."""
        model = (self.runtime.dialect.launch.model, str(model_path.absolute()))
        argv = (*(self.command or ()), *words, *model)
        finished = run_program(argv, {**self.runtime.env, **variables}, rules.timeout_s)
        return None if finished.returncode else finished.stdout

    def _run(
        self,
        rules: EstimatorRules,
        words: Sequence[str],
        variables: Mapping[str, str],
        model_path: Path,
    ) -> DeviceSizes | None:
        return read_sizes(self._run_planner(rules, words, variables, model_path) or "", rules)

    def _correct_logits(
        self,
        rules: EstimatorRules,
        candidate: Candidate,
        words: Sequence[str],
        variables: Mapping[str, str],
        sizes: DeviceSizes,
    ) -> DeviceSizes:
        """Return the sizes with the server's few rows of logits instead of those of a ubatch."""
        smaller: DeviceSizes | None = None
        with suppress(OSError, UsageError), TemporaryDirectory(prefix="autofit-") as folder:
            copy = Path(folder) / "copy.gguf"
            write_copy_without_vocabulary(self.model_path, copy)
            smaller = self._run(rules, words, variables, copy)
        if smaller is None or smaller.keys() != sizes.keys():
            return sizes  # too high for a vocabulary of any size
        output = _find_output_device(sizes, smaller)
        rows = min(
            candidate.get_int("ubatch", _UBATCH),
            candidate.get_int("batch", _BATCH),
            candidate.get_int("context", _BATCH) or _BATCH,
        )
        logits_mib = candidate.get_int("parallel", 1) * self.header.n_vocab * 4 / MIB
        hidden_mib = rows * self.header.n_embd * 4 / MIB
        rest = smaller[output]
        needed_mib = max(rest.compute_mib, logits_mib) + 2 * hidden_mib
        if output != HOST_NAME and not rest.model_mib and not rest.context_mib:
            needed_mib = logits_mib + 1  # it has only the output layer
        return {**sizes, output: replace(sizes[output], compute_mib=needed_mib)}


def read_sizes(output: str, rules: EstimatorRules) -> DeviceSizes | None:
    """Return the sizes in the planner's output, or None if it lacks the host's."""
    sizes = {
        HOST_NAME if row["device"] == rules.host else row["device"]: ReportedMemory(
            model_mib=float(row["model"]),
            context_mib=float(row["context"]),
            compute_mib=float(row["compute"]),
        )
        for row in re.finditer(rules.row_pattern, output, re.MULTILINE)
    }
    return sizes if HOST_NAME in sizes else None


def _find_output_device(sizes: DeviceSizes, smaller: DeviceSizes) -> str:
    """Return the device of the output layer: the one whose weights shrink with the vocabulary.

    The host's weights always shrink, because of the token embedding.
    """
    lost = {name: row.model_mib - smaller[name].model_mib for name, row in sizes.items()}
    devices = [name for name in lost if name != HOST_NAME and lost[name] > 0]
    return max(devices, key=lost.__getitem__, default=HOST_NAME)


class PredictionCache:
    """Predictions by key, in memory and in a file with one line for each.

    A line that is incomplete or of another form is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, DeviceSizes | None] = {}
        lines: list[str] = []
        with suppress(OSError, UnicodeDecodeError):
            lines = read_input(path).decode("utf-8").splitlines()
        for line in lines:
            with suppress(ValueError, TypeError, AttributeError):
                key, sizes = parse_json(line)
                self._known[key] = {name: ReportedMemory(**row) for name, row in sizes.items()}

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str) -> DeviceSizes | None:
        """Return the prediction of a key, or None if there is none."""
        return self._known.get(key)

    def put(self, key: str, sizes: DeviceSizes | None, *, is_lasting: bool) -> None:
        """Store a prediction (None: a failed run); write it to the file only if it is lasting."""
        self._known[key] = sizes
        if sizes is None or not is_lasting:
            return
        line = json.dumps([key, {name: asdict(row) for name, row in sizes.items()}])
        with suppress(OSError):  # without a cache, the planner runs again: that only takes time
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
