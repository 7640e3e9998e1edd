"""Compares memory by arithmetic with what the runtime says, device by device.

Run it as `python benchmarks/bench_estimator.py`, with `tests` on PYTHONPATH; the table is
kept in `results/benchmarks/estimator.md`. It asks `llama-fit-params --fit-print on` on remote
devices of this machine, about headers without data. It starts llama-server with synthesized models
on them, and takes buffers that CUDA servers reported from `tests/data/memory`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from conftest import _llama_cpp_folder
from model.compute_truth import SPECS, BufferComparison, compare_buffers, models
from model.synthesized import PUBLISHED_WIDTHS, ServerRow, compare_with_server
from model_headers import MODELS
from real_llama_cpp import fit_print, rpc_device

from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.synth.random_model import write_model
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device

UBATCHES = (512, 1024, 2048, 4096)
CONTEXTS = (4096, 16384, 131072)
GRID_MODELS = ("moe-32k", "moe-152k", "dense-128k")


@dataclass(frozen=True)
class Row:
    """One device: MiB reported by the runtime and predicted, for weights, cache and compute."""

    case: str
    device: str
    reported: tuple[int, int, int]
    computed: tuple[float, float, float]

    def error(self, part: int) -> float:
        """Relative, beyond what rounding down to a MiB explains."""
        reported, mib = self.reported[part], self.computed[part]
        beyond = max(0.0, reported - mib, mib - reported - 1)
        return (beyond if mib >= reported else -beyond) / max(reported, 1)

    @property
    def is_close(self) -> bool:
        """Return whether the compute buffer is within 15 % or 32 MiB."""
        return abs(self.computed[2] - self.reported[2]) <= max(32, 0.15 * self.reported[2])


def ask(
    folder: Path,
    model: ModelInventory,
    case: str,
    addresses: list[str],
    *,
    context: int,
    ubatch: int,
    hosted: int,
) -> Iterator[Row]:
    """Both sides for one candidate on as many devices as there are addresses."""
    available = [Device(f"RPC{i}", name, 1e6, 1e6) for i, name in enumerate(addresses)]
    first = model.units // 2
    split = f"{first},{model.units - first}" if len(addresses) > 1 else "1"
    batch = max(2048, ubatch)
    words = ["--rpc", ",".join(addresses), "-ngl", "999", "-ts", split, "-fa", "on"]
    words += ["-c", str(context), "-b", str(batch), "-ub", str(ubatch)]
    words += ["-ncmoe", str(hosted)] if hosted else []
    reported = fit_print(folder, model.path, *words).rows
    settings = {"context": context, "batch": batch, "ubatch": ubatch, "tensor_split": split}
    candidate = Candidate(settings | ({"n_cpu_moe": hosted} if hosted else {}))
    # The planner keeps logits of every token of a ubatch.
    estimate = estimate_memory(model, candidate, available, outputs=ubatch)
    for row in estimate.devices:
        computed = (row.weights_mib, row.kv_mib, row.compute_mib)
        yield Row(case, row.name, reported[row.name], computed)


def grid(folder: Path, addresses: list[str], work: Path) -> Iterator[Row]:
    """Sizes that matter, one after the other."""
    found = models(work)
    for name in GRID_MODELS:
        hosting = (0, 2) if SPECS[name].experts else (0,)
        for ubatch, context, hosted in product(UBATCHES, CONTEXTS, hosting):
            case = f"{name}, ubatch {ubatch}, context {context}, {hosted} hosted"
            yield from ask(
                folder,
                found[name],
                case,
                addresses,
                context=context,
                ubatch=ubatch,
                hosted=hosted,
            )


def architectures(folder: Path, addresses: list[str], work: Path) -> Iterator[tuple[str, Row]]:
    """Headers of published models, on one and two devices."""
    for name, make in MODELS.items():
        model = read_inventory(make().write(work / f"{name}.gguf"))
        most = model.block_count if model.is_moe else 0
        for used, hosted, ubatch in product((1, 2), sorted({0, most}), (512, 2048)):
            for row in ask(
                folder,
                model,
                name,
                addresses[:used],
                context=16384,
                ubatch=ubatch,
                hosted=hosted,
            ):
                yield name, row


def synthesized(
    folder: Path, addresses: list[str], work: Path
) -> Iterator[tuple[str, int, ServerRow]]:
    """Yield the rows of each architecture on one and two devices."""
    for arch, spec in PUBLISHED_WIDTHS.items():
        write_model(spec, work / f"{arch}.gguf")
        model = read_inventory(work / f"{arch}.gguf")
        hosting = (0, model.block_count // 2, model.block_count)
        for used, context, kv_type, hosted in product(
            (1, 2), (4096, 16384), ("f16", "q8_0"), hosting
        ):
            for row in compare_with_server(
                folder,
                model,
                work / "log",
                addresses[:used],
                context=context,
                kv_type=kv_type,
                hosted=hosted,
            ):
                yield arch, used, row


def synthesized_table(found: list[tuple[str, int, ServerRow]]) -> list[str]:
    """Return one line for each architecture and number of devices."""
    lines = [
        "| model | devices | rows | weights, worst | cache, worst | compute, median | worst |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arch, used in dict.fromkeys((arch, used) for arch, used, _ in found):
        errors = [row.errors for *key, row in found if key == [arch, used]]
        worst = [max((row[part] for row in errors), key=abs) for part in range(3)]
        middle = median(abs(row[2]) for row in errors)
        lines.append(
            f"| {arch} | {used} | {len(errors)} | {worst[0]:+.1f} | {worst[1]:+.1f} "
            f"| {middle:.1f} | {worst[2]:+.1f} |"
        )
    return lines


def percent(error: float) -> str:
    """With its sign."""
    return f"{error:+.1%}"


def grid_table(rows: list[Row]) -> list[str]:
    """Every device of every case."""
    lines = [
        "| case | device | weights | cache | compute, planner | compute, arithmetic | error |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.case} | {row.device} | {percent(row.error(0))} | {percent(row.error(1))} "
        f"| {row.reported[2]} | {row.computed[2]:.0f} | {percent(row.error(2))} |"
        for row in rows
    ]
    return lines


def architecture_table(named: list[tuple[str, Row]]) -> list[str]:
    """One line for each model."""
    lines = [
        (
            "| model | devices | weights, worst | cache, worst | compute, median | compute, worst "
            "| within 15 % or 32 MiB |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(name for name, _ in named):
        rows = [row for found, row in named if found == name]
        worst = [max((row.error(part) for row in rows), key=abs) for part in range(3)]
        middle = median(abs(row.error(2)) for row in rows)
        close = sum(row.is_close for row in rows)
        lines.append(
            f"| {name} | {len(rows)} | {percent(worst[0])} | {percent(worst[1])} "
            f"| {middle:.1%} | {percent(worst[2])} | {close} of {len(rows)} |"
        )
    return lines


def server_table(rows: list[BufferComparison]) -> list[str]:
    """One line for each model and kind of device."""
    lines = [
        "| model | device | buffers | median | worst | within 3 % or 8 MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for model, device in sorted({(row.model, row.device) for row in rows}):
        some = [row for row in rows if (row.model, row.device) == (model, device)]
        worst = max((row.error for row in some), key=abs)
        middle = median(abs(row.error) for row in some)
        close = sum(row.is_close for row in some)
        lines.append(
            f"| {model} | {device} | {len(some)} | {middle:.1%} | {percent(worst)} "
            f"| {close} of {len(some)} |"
        )
    return lines


def main() -> int:
    """Print everything as Markdown."""
    folder = _llama_cpp_folder()
    if folder is None:
        print("no real llama.cpp: `python tests/fetch_llama_cpp.py` says why", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        addresses = [stack.enter_context(rpc_device(folder)) for _ in range(2)]
        on_grid = list(grid(folder, addresses, Path(work)))
        published = list(architectures(folder, addresses, Path(work)))
        served = list(compare_buffers(models(Path(work))))
        made = list(synthesized(folder, addresses, Path(work)))
    close = sum(row.is_close for row in on_grid)
    print("# Predicted memory next to the runtime's own report\n")
    print("Made by `benchmarks/bench_estimator.py`. Errors are relative to the runtime, beyond")
    print("what its rounding down to a MiB explains.\n")
    print("## Compute buffers of CUDA servers (b11434, H200)\n")
    print("\n".join(server_table(served)))
    print("\n## Synthesized architectures, llama-server on one and two remote devices\n")
    print(
        "Errors in MiB. Context 4,096 and 16,384, KV f16 and q8_0, ubatch 512, the experts of no,"
    )
    print("half of the and all layers hosted. Rows are devices and the host.\n")
    print("\n".join(synthesized_table(made)))
    print("\n## Published architectures, llama-fit-params on one and two remote devices\n")
    print("Context 16,384, ubatch 512 and 2,048, no and all experts hosted.\n")
    print("\n".join(architecture_table(published)))
    print("\n## Sizes, llama-fit-params on two remote devices\n")
    print(f"Compute within 15 % or 32 MiB: {close} of {len(on_grid)} devices.\n")
    print("\n".join(grid_table(on_grid)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
