"""Everything that autofit reads from outside, each with real inputs and the code that reads it.

A target may refuse an input with an `AutofitError`, or with the errors that its reader documents.
Anything else is a find.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from machine.linux_files import add_card, add_kfd_node
from machine.nvidia_driver import ONE_CARD, nvidia_driver
from sweep.night_sample import night

from autofit.cli.main import _run
from autofit.doctor.findings import check_cards
from autofit.errors import AutofitError
from autofit.input_files import parse_json
from autofit.machine import cpu, kernel_files, linux_gpus, nvml
from autofit.machine.cgroup import Cgroup
from autofit.machine.device_source import with_gpu_facts
from autofit.machine.lock import _describe_holder
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.replay.recorded_table import read_table
from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.runtime.discovery.help_text import parse_help
from autofit.runtime.discovery.program_inspector import read_devices
from autofit.runtime.planner.divergence_program import read_divergence
from autofit.runtime.planner.planner import PredictionCache, read_sizes
from autofit.runtime.server import answers
from autofit.runtime.server.applied_settings import read_applied
from autofit.sweep.baseline_file import Baseline
from autofit.trial.device import Device

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
_REFERENCE = ROOT / "results" / "reference" / "h200-12gb-chat"
_LARGEST_SEED = 200_000


@dataclass(frozen=True)
class Target:
    """One kind of input; `use` gets the file with the input and a generator of choices."""

    seeds: Callable[[], list[bytes]]
    use: Callable[[Path, random.Random], None]
    suffix: str = ".txt"


class FaultError(Exception):
    """A fault that autofit reports as its own, or a control character on a terminal."""


def run_autofit(*words: object) -> None:
    """Run a command in this process; an internal error is a find."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        _run([str(word) for word in words])
        out.flush()
        err.flush()
    printed = err.buffer.getvalue().decode("utf-8", "replace")
    if "fault in autofit itself" in printed:
        traces = [path.read_text() for path in Path(tempfile.gettempdir()).glob("autofit-fault-*")]
        for path in Path(tempfile.gettempdir()).glob("autofit-fault-*"):
            path.unlink()
        raise FaultError(printed + "".join(traces))
    bad = {c for c in printed if c != "\n" and not c.isprintable()}
    if bad:
        raise FaultError(f"control characters {bad} in {printed!r}")


def _files(*patterns: str) -> list[bytes]:
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    return [path.read_bytes()[:_LARGEST_SEED] for path in paths]


def _explain(path: Path, choose: random.Random) -> None:
    dialect = choose.choice(sorted(load_all_dialects()))
    run_autofit("explain", path, "--dialect", dialect, *choose.choice(([], ["--json"])))


def _import(path: Path, choose: random.Random) -> None:
    suffix = choose.choice((".sh", ".ini", ".json", ".yaml", ".yml", ".service", ".env", ""))
    preset = path.with_suffix(suffix)
    path.replace(preset)
    run_autofit("import", preset, *choose.choice(([], ["--json"])))


@cache
def _model() -> tuple[bytes, int]:
    """Return the header of a small model, and the size of its file."""
    path = Path(_scratch()) / "model.gguf"
    write_model(SynthSpec(layers=3, experts=4, vocab=300, header_only=True), path)
    with path.open("rb") as file:
        head = file.read(1 << 16).rstrip(b"\0")
    return head + b"\0" * 64, path.stat().st_size


def _plan(path: Path, choose: random.Random) -> None:
    size = choose.choice((_model()[1], _model()[1], 1 << 40, 100))
    with path.open("rb+") as file:
        file.truncate(max(size, path.stat().st_size))
    run_autofit("plan", path, "--device", "A=12288", "--device", "B=4096", "--json")


_STUDY_COMMANDS = (
    ("show",),
    ("show", "--json"),
    ("show", "--command", "2"),
    ("report",),
    ("report", "--html", "-"),
    ("export", "--format", "shell", "-o", "-"),
    ("export", "--format", "ini", "-o", "-", "--trial", "3"),
)


def _study(name: str) -> Callable[[Path, random.Random], None]:
    def use(path: Path, choose: random.Random) -> None:
        folder = path.parent / "study"
        if not folder.exists():
            shutil.copytree(_REFERENCE, folder)
            for log in folder.glob("trials/*.log"):
                log.unlink()
        kept = folder / name
        shutil.copyfile(path, kept)
        try:
            command, *options = choose.choice(_STUDY_COMMANDS)
            run_autofit(command, folder, *options)
        finally:
            kept.unlink()
            if (_REFERENCE / name).exists():
                shutil.copyfile(_REFERENCE / name, kept)

    return use


def _help(path: Path, choose: random.Random) -> None:
    found = parse_help(path.read_bytes().decode("utf-8", "replace"))
    for spelling in list(found.flags)[:20]:
        found.synonyms(spelling)
    del choose


def _device_lists() -> list[bytes]:
    rows = (
        "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3060 (12288 MiB, 11900 MiB free)\n",
        "  Vulkan0: AMD Radeon (RADV) (16368 MiB, 16001 MiB free)\n",
        "  RPC0: 127.0.0.1:50052 (64000 MiB, 60000 MiB free)\n",
    )
    return [row.encode() for row in rows] + ["".join(rows).encode()]


def _devices(path: Path, choose: random.Random) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    for dialect in load_all_dialects().values():
        if dialect.ask.devices:
            read_devices(text, dialect.ask)
    del choose


def _planner_rows() -> list[bytes]:
    return [b"CUDA0 8000 512 300\nHost 4000 0 64\n", b"CUDA0 1 2 3\nCUDA1 1 2 3\nHost 1 2 3\n"]


def _planner(path: Path, choose: random.Random) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    for dialect in load_all_dialects().values():
        if dialect.estimator:
            read_sizes(text, dialect.estimator)
    PredictionCache(path)
    del choose


def _divergence(path: Path, choose: random.Random) -> None:
    rules = load_dialect("llama_server").divergence
    assert rules is not None
    read_divergence(path.read_bytes().decode("utf-8", "replace"), rules)
    del choose


_TIMINGS = {"cache_n": 0, "prompt_n": 512, "prompt_ms": 90.5, "predicted_n": 16, "predicted_ms": 3}
_ANSWERS = (
    {"content": "a", "tokens": [1, 2], "stop": True, "timings": _TIMINGS},
    {
        "completion_probabilities": [
            {"id": 1, "logprob": -0.5, "top_logprobs": [{"id": 2, "logprob": -1}]}
        ]
    },
    {"error": {"code": 500, "message": "no", "type": "server_error"}},
    {"default_generation_settings": {"n_ctx": 4096, "params": {"seed": 1}}, "total_slots": 1},
    {"data": [{"id": "m", "status": {"value": "loaded"}}]},
)


def _answer(path: Path, choose: random.Random) -> None:
    dialect = choose.choice(list(load_all_dialects().values()))
    with contextlib.suppress(answers.WrongAnswerError):
        data = answers.parse_object(path.read_bytes().decode("utf-8", "replace"))
        readers = (
            answers.read_event,
            answers.read_tokens,
            answers.read_models,
            lambda one: answers.read_error_code(one) if "error" in one else None,
            lambda one: answers.read_timings(one.get("timings"), dialect.timings),
            lambda one: (answers.check_props(one, dialect), read_applied(dialect, one)),
        )
        for read in readers:
            with contextlib.suppress(answers.WrongAnswerError):
                read(data)


def _baselines() -> list[bytes]:
    return [Baseline().updated([night(seed)]).dump().encode() for seed in (1, 2)]


def _table(path: Path, choose: random.Random) -> None:
    read_table(path, choose.choice((None, "tg", "pp", "request_s")))


_KERNEL_TEXTS = (
    b"0-3,8,10-11\n",
    b"max\n",
    b"100000 100000\n",
    b"some avg10=0.00 avg60=1.5 total=5\n",
    b"0x10de\n",
    b"cpu_cores_count 0\nsimd_count 64\nlocation_id 768\ndomain 0\n",
    b"2400000\n",
    b"31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n",
    b"0::/user.slice\n",
    b"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
    b"16.0 GT/s PCIe\n",
    b"anon 5\nfile 7\n",
)


def _kernel(path: Path, choose: random.Random) -> None:
    """Put the input in place of one or all of the kernel's files that autofit reads."""
    root = path.parent / "root"
    shutil.rmtree(root, ignore_errors=True)
    device = add_card(root, 0, "0000:03:00.0", "0x1002", vram_total=1000, vram_used=10)
    add_kfd_node(root, 1, 64, 768)
    texts = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": _KERNEL_TEXTS[7].decode(),
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "5\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 5\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
        "sys/fs/cgroup/memory.events": "oom_kill 0\n",
        "sys/devices/system/node/node0/cpulist": "0-3\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "2400000\n",
        "sys/devices/system/cpu/cpu0/cpu_capacity": "1024\n",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width"):
        (device / name).write_text("16\n")
    files = sorted(one for one in root.rglob("*") if one.is_file() and not one.is_symlink())
    for file in choose.sample(files, choose.choice((1, 1, 3, len(files)))):
        shutil.copyfile(path, file)
    cards = linux_gpus.find_cards(root)
    linux_gpus.find_linux_gpus(root)
    linux_gpus.rocm_order(root)
    linux_gpus.amd_states(root)
    group = Cgroup.find(root=root)
    group.memory()
    group.cpu_limit()
    group.oom_kills()
    cpu.read_cores(group, root=root)
    cpu.count_cpu_throttles(root)
    cpu.slow_governors(root)
    kernel_files.read_mib(path)
    del cards


def _nvml(path: Path, choose: random.Random) -> None:
    """Let the library of NVIDIA's driver answer with the values of the input."""
    try:
        answers = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    devices = [Device("CUDA0", "NVIDIA GeForce RTX 3060", 12288, 11900)]
    with nvidia_driver(answers if isinstance(answers, dict) else {}):
        found = [
            *nvml.find_nvidia_gpus(),
            *nvml.nvidia_states(),
            *check_cards((), nvml.nvidia_states()),
            *with_gpu_facts(devices, env={}, root=path.parent / "nowhere"),
        ]
        counters = nvml.NvidiaMemory({"CUDA0": 0}).read()
        json.dumps([nvml.nvidia_driver(), counters, *map(asdict, found)], allow_nan=False)
    del choose


def _holder(path: Path, choose: random.Random) -> None:
    lock = path.with_name("lock")
    lock.touch()
    _describe_holder(lock, path)
    del choose


def _json_document(path: Path, choose: random.Random) -> None:
    with contextlib.suppress(ValueError):
        json.dumps(parse_json(path.read_bytes()))
    del choose


_scratch_folder: list[Path] = []


def _scratch() -> Path:
    return _scratch_folder[0]


def make_targets(scratch: Path) -> dict[str, Target]:
    """Return all targets by name; `scratch` is a folder for files that seeds need."""
    _scratch_folder[:] = [scratch]

    def reference(name: str) -> Target:
        return Target(lambda: [(_REFERENCE / name).read_bytes()], _study(name), ".json")

    def documents(*values: object) -> Callable[[], list[bytes]]:
        return lambda: [json.dumps(value).encode() for value in values]

    definitions = "tests/data/definitions/*/*.yaml"
    shipped = ("search_spaces/**/*.yaml", "runners/*.yaml", "tests/data/suites/*/*.yaml")
    return {
        "log": Target(lambda: _files("tests/data/logs/*/*.log"), _explain, ".log"),
        "yaml": Target(
            lambda: _files(*shipped, definitions),
            lambda path, _: run_autofit("check", path),
            ".yaml",
        ),
        "preset": Target(lambda: _files("tests/data/imports/good/*"), _import),
        "model": Target(lambda: [_model()[0]], _plan, ".gguf"),
        "study head": reference("study.json"),
        "trial": reference("trials/0002.json"),
        "skipped": Target(
            lambda: _files("results/reference/*/skipped.jsonl"), _study("skipped.jsonl")
        ),
        "help": Target(lambda: _files("tests/data/help/*.txt"), _help),
        "devices": Target(_device_lists, _devices),
        "planner": Target(_planner_rows, _planner),
        "divergence": Target(lambda: _files("tests/data/divergence/*"), _divergence),
        "answer": Target(documents(*_ANSWERS), _answer, ".json"),
        "baseline": Target(_baselines, lambda path, _: Baseline.read(path) and None, ".json"),
        "table": Target(lambda: _files("results/landscapes/*.csv"), _table, ".csv"),
        "kernel": Target(lambda: list(_KERNEL_TEXTS), _kernel),
        "nvml": Target(documents(ONE_CARD), _nvml, ".json"),
        "holder": Target(
            documents({"pid": 1, "study": "results/a", "since": 1.5}), _holder, ".json"
        ),
        "json": Target(documents([1, {"a": [2.5, None, "x"]}]), _json_document, ".json"),
    }


def allowed_errors() -> tuple[type[BaseException], ...]:
    """Return the errors with which a target may refuse its input."""
    return (AutofitError, SystemExit)


def iterate_names(targets: dict[str, Target]) -> Iterator[str]:
    """Yield the names of all targets in turn, without an end."""
    while True:
        yield from targets
