"""Studies of every kind, for the tests of plots and of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from output.tune_sample import HOSTILE, RESULT, make_study
from study.study_sample import ENVIRONMENT, header, measurement, trial
from trial.purpose_sample import purpose_of

from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory
from autofit.trial.outcome import Crashed, OutOfMemory
from autofit.trial.trial import Trial

# Text that would be markup in HTML or for plotly.
MARKUP = '<img src=x onerror="alert(1)"><b>bold</b><a href="javascript:alert(2)">x</a>&lt;i&gt;'

LAYERS = 48


def with_memory(measured: Measurement, **applied: Any) -> Measurement:
    """Return a measurement of a model of 48 layers, with memory before and after."""
    return replace(
        measured,
        applied={"layers": LAYERS, **applied},
        reported={**measured.reported, "Host": ReportedMemory(7000.0, 0.0, 120.0)},
        readings=(MemoryReading(0.0, {"CUDA0": 700.0}, {"CUDA0": 11600.0}),),
    )


def written(path: Path, trials: Sequence[Trial], result: dict | None, **head: Any) -> Study:
    """Return a closed study of these trials."""
    with Study.create(path, header(**head)) as study:
        for one in trials:
            study.write_trial(one)
        if result is not None:
            study.conclude(result)
    return Study.open(path)


def whole(path: Path, *, text: str = "") -> Study:
    """Return a tune with every plot: failures, a cliff, rounds, a proof; `text` is in all."""
    evidence = text or "cudaMalloc failed: out of memory"
    oom = OutOfMemory("context", evidence, buffer="kv", device="CUDA0", requested_mib=931.5)
    winner = {**RESULT["winner"]["params"], "devices": "CUDA0", "n_gpu_layers": LAYERS + 1}
    first = trial(1, phase="baseline", measured=with_memory(measurement(22.0, 800.0)))
    trials = [replace(first, candidate=Candidate({"context": 8192, "parallel": 1}))]
    number = 2
    for ubatch in (512, 2048):
        for host in (30, 24, 20, 18, 16):
            is_short = host < (18 if ubatch < 2048 else 20)
            measured = (
                None if is_short else with_memory(measurement(60.0 - host, 900.0 + ubatch / 8))
            )
            params = {**winner, "n_cpu_moe": host, "ubatch": ubatch}
            made = trial(number, oom if is_short else None, measured=measured)
            trials.append(replace(made, candidate=Candidate(params)))
            number += 1
    for each in range(1, 5):
        for params, speed in (({"context": 8192, "parallel": 1}, 22.0), (winner, 42.0)):
            made = trial(
                number,
                phase="confirm",
                measured=with_memory(measurement(speed + each / 5, 1000.0)),
            )
            made = replace(
                made, candidate=Candidate(params), purpose=purpose_of("confirm", round=each)
            )
            trials.append(made)
            number += 1
    proof = measurement(36.0, 950.0)
    deep = tuple(
        replace(s, depth=8000, request=-1, prompt_tokens=8000, prompt_s=8.4) for s in proof.samples
    )
    made = trial(number, phase="prove", measured=with_memory(replace(proof, samples=deep)))
    trials.append(replace(made, candidate=Candidate(winner), purpose=purpose_of("prove")))
    if text:
        trials = [
            replace(
                t,
                purpose=replace(t.purpose, reason=text),
                layout=text,
                notes=(text,),
                argv=("llama-server", "-m", text),
            )
            for t in trials
        ]
    result = {
        **RESULT,
        "winner": {**RESULT["winner"], "params": winner, "trial": number},
        "notes": [text or "a device has room for another expert layer"],
        "boundary": [
            {**RESULT["boundary"][0], "layout": text or "balanced", "cache_type": "f16"},
            *RESULT["boundary"],
        ],
    }
    names = {"model_name": text, "model_path": f"/models/{text}"} if text else {}
    return written(path, trials, result, **names)


def three_devices(path: Path) -> Study:
    """Two cards and a remote device without counters; experts sent away by overrides."""
    names = ("CUDA0", "CUDA1", "RPC0")
    blocks = "|".join(str(block) for block in (*range(6), *range(20, 24), 40))
    candidate = Candidate(
        {
            "devices": ",".join(names),
            "n_gpu_layers": LAYERS + 1,
            "tensor_split": "20,17,12",
            "override_tensor": rf"blk\.({blocks})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU,"
            r"blk\.7\.ffn_(up|gate)_exps=CPU",
            "ubatch": 1024,
        }
    )
    measured = with_memory(measurement(31.0))
    measured = replace(
        measured,
        peak_mib={"CUDA0": 11000.0, "CUDA1": 7900.0, "RPC0": None, "host": 9000.0},
        free_mib={"CUDA0": 900.0, "CUDA1": 210.0, "RPC0": None, "host": 20000.0},
        reported={name: ReportedMemory(6000.0, 700.0, 300.0) for name in names},
        readings=(MemoryReading(0.0, {"CUDA0": 10.0, "CUDA1": 5000.0}, {}),),
    )
    trials = [
        trial(1, phase="baseline", measured=with_memory(measurement(20.0))),
        replace(trial(2, measured=measured), candidate=candidate),
    ]
    won = {**RESULT["winner"], "params": dict(candidate.params), "trial": 2}
    return written(path, trials, {**RESULT, "winner": won})


def cpu_only(path: Path) -> Study:
    """No device at all: threads and batches are all there is."""
    params = [{"threads": n, "ubatch": 512, "batch": 2048} for n in (2, 4, 8)]
    plain = replace(measurement(9.0), peak_mib={"host": 900.0}, free_mib={"host": 3000.0})
    plain = replace(plain, reported={"CPU": ReportedMemory(700.0, 90.0, 30.0)}, readings=())
    trials = [
        replace(trial(n + 1, phase="search", measured=plain), candidate=Candidate(p), layout="")
        for n, p in enumerate(params)
    ]
    trials[0] = replace(trials[0], purpose=purpose_of("baseline"))
    won = {**RESULT["winner"], "params": params[2], "free_mib": {"host": 3000.0}}
    result = {**RESULT, "winner": won, "boundary": [], "cliffs": []}
    return written(path, trials, result, environment=replace(ENVIRONMENT, devices=()))


def one_trial(path: Path) -> Study:
    """Return a tune that was stopped in its search."""
    return written(path, [trial(1, phase="baseline")], None)


def all_failed(path: Path) -> Study:
    """Return a tune without a completed launch."""
    crash = Crashed("load", "GGML_ASSERT failed", reason="device_lost", exit_status=-6)
    trials = [trial(n, crash, phase="search", n_cpu_moe=10 + n) for n in range(1, 4)]
    result = {
        **RESULT,
        "winner": None,
        "gain": None,
        "boundary": [],
        "cliffs": [],
        "baseline": {**RESULT["baseline"], "estimates": {}},
    }
    return written(path, trials, result)


def comparison(path: Path) -> Study:
    """Return a comparison of two sides."""
    candidate = Candidate({"devices": "CUDA0", "n_gpu_layers": LAYERS + 1, "n_cpu_moe": 20})
    trials = [
        replace(
            trial(
                2 * each + index,
                phase="confirm",
                measured=with_memory(measurement(30.0 + 5 * index)),
            ),
            candidate=candidate,
            purpose=purpose_of("confirm", round=each, side=side),
        )
        for each in (1, 2, 3)
        for index, side in enumerate("AB")
    ]
    side = {
        "name": "preset.args",
        "runtime": "llama_server b1",
        "estimates": RESULT["winner"]["estimates"],
        "first_request": {},
        "second_request": {},
        "load_s": {"median": 4.5, "low": None, "high": None, "n": 3},
        "peak_mib": {"CUDA0": 11000.0},
        "free_mib": {"CUDA0": None},
    }
    result = {
        "because": "speed",
        "words": ["better: B is 1.10x as fast as A", "the same answers as A to 8 prompts"],
        "a": side,
        "b": side,
        "ratios": {},
        "launches": 6,
        "seconds": 190.0,
    }
    return written(path, trials, result)


def probe(path: Path) -> Study:
    """Return a probe with both sides of a boundary."""
    fits = with_memory(replace(measurement(), samples=()))
    trials = [
        trial(1, phase="boundary", n_cpu_moe=20, measured=fits),
        trial(2, OutOfMemory("context", "failed"), phase="boundary", n_cpu_moe=19),
    ]
    rows = [{**RESULT["boundary"][0], "cache_type": "f16"}]
    return written(path, trials, {"boundary": rows, "launches": 2, "seconds": 60.0})


def large(path: Path, count: int = 500) -> Study:
    """Return a tune with very many launches, a third of them failed."""
    line = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 931.50 MiB on device 0: "
    oom = OutOfMemory("context", f"{line}cudaMalloc failed: out of memory", buffer="kv")
    trials = [
        trial(
            n,
            n_cpu_moe=n % 48,
            ubatch=2 ** (7 + n % 5),
            measured=with_memory(measurement(20 + n / 50)),
        )
        if n % 3
        else trial(n, oom, n_cpu_moe=n % 48, ubatch=2 ** (7 + n % 5))
        for n in range(1, count + 1)
    ]
    return written(path, trials, None)


KINDS: dict[str, Callable[[Path], Study]] = {
    "whole": whole,
    "hostile": lambda path: whole(path, text=HOSTILE + MARKUP),
    "failures": make_study,
    "three_devices": three_devices,
    "cpu_only": cpu_only,
    "one_trial": one_trial,
    "all_failed": all_failed,
    "empty": lambda path: written(path, [], None),
    "comparison": comparison,
    "probe": probe,
    "large": large,
}
