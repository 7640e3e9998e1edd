"""A finished tune in a study folder, with every kind of ending, for the tests of outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from study.study_sample import header, measurement, trial

from autofit.study.study_folder import Study
from autofit.study.study_records import SkippedCandidate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import (
    Crashed,
    Incorrect,
    OutOfMemory,
    Rejected,
    Skipped,
    Spilled,
    TimedOut,
)

HOSTILE = "</script><script>alert('x')</script>|`**[a](javascript:b)\x1b[31m\n# heading"


def _estimates(request_s: float, tg: float) -> dict:
    return {
        "request_s": {
            "median": request_s,
            "low": request_s * 0.98,
            "high": request_s * 1.03,
            "n": 5,
        },
        "tg_per_s": {"median": tg, "low": tg * 0.97, "high": tg * 1.02, "n": 5},
        "pp_per_s": {"median": 1021.4, "low": None, "high": None, "n": 2},
    }


RESULT = {
    "study": "results/x",
    "baseline": {
        "params": {},
        "argv": ["llama-server", "-m", "model.gguf"],
        "estimates": _estimates(9.1, 22.0),
        "outcome": {"kind": "completed"},
    },
    "winner": {
        "params": {"n_gpu_layers": 49, "n_cpu_moe": 20, "ubatch": 2048, "flash_attn": "on"},
        "argv": ["llama-server", "-m", "/models/my model.gguf", "--port", "{port}"],
        "env": {"GGML_X": "3"},
        "estimates": _estimates(6.4, 42.0),
        "peak_mib": {"CUDA0": 11300.0},
        "free_mib": {"CUDA0": 850.0, "host": None},
        "proven": True,
    },
    "gain": {"median": 1.42, "low": 1.37, "high": 1.47},
    "tie": False,
    "boundary": [
        {
            "layout": "balanced",
            "cache_type": "q8_0",
            "ubatch": 2048,
            "n_cpu_moe": 20,
            "fits": 20,
            "fails": 19,
            "outcome": "out_of_memory",
            "proven": True,
            "source": "launch",
        },
        {
            "layout": "balanced",
            "cache_type": "f16",
            "n_cpu_moe": 22,
            "fits": 22,
            "fails": None,
            "outcome": None,
            "proven": False,
            "source": "estimate",
        },
    ],
    "cliffs": [
        {
            "param": "n_cpu_moe",
            "from": 20,
            "to": 19,
            "metric": "tg",
            "ratio": 0.84,
            "low": 0.8,
            "high": 0.88,
            "layout": "balanced",
            "cache_type": "q4_0",
        }
    ],
    "launches": 12,
    "launches_by_phase": {"baseline": 1, "boundary": 3, "search": 6, "confirm": 2, "prove": 0},
    "spent": {
        "by_phase": [
            {"phase": "baseline", "fidelity": "short", "launches": 1, "seconds": 96.0},
            {"phase": "boundary", "fidelity": "load", "launches": 1, "seconds": 60.0},
            {"phase": "boundary", "fidelity": "short", "launches": 2, "seconds": 124.0},
            {"phase": "search", "fidelity": None, "launches": 6, "seconds": 530.5},
            {"phase": "confirm", "fidelity": "full", "launches": 2, "seconds": 990.0},
        ],
        "by_fidelity": {
            "estimate": {"questions": 14, "seconds": 12.5},
            "load": {"launches": 1, "seconds": 60.0},
            "short": {"launches": 3, "seconds": 220.0},
            "full": {"launches": 2, "seconds": 990.0},
        },
        "own_seconds": 21.0,
    },
    "outcomes": {"completed": 6, "out_of_memory": 2, "spilled": 1},
    "seconds": 1834.0,
    "preset": "presets/winner.ini",
}


def make_study(path: Path, *, hostile: bool = False, result: dict | None = RESULT) -> Study:
    """Return a closed study with completed trials and one of every failure."""
    evidence = HOSTILE if hostile else "cudaMalloc failed: out of memory"
    head = header(model_name=HOSTILE if hostile else "Qwen3-30B-A3B-Q4_K_M")
    oom = OutOfMemory("context", evidence, buffer="kv", device="CUDA0", requested_mib=931.5)
    failures = [
        oom,
        Spilled("generate", evidence, device="CUDA0", spilled_mib=700.0),
        Rejected("load", evidence, reason="unknown_flag"),
        TimedOut("prompt", evidence, limit_s=600.0),
        Incorrect("generate", evidence),
        Crashed("warmup", evidence, reason="device_lost", exit_status=-6),
    ]
    defaults = trial(1, phase="baseline", measured=measurement(22.0, 800.0))
    trials = [replace(defaults, candidate=Candidate({"context": 8192, "parallel": 1}))]
    trials += [
        trial(2 + i, failure, n_cpu_moe=19 - i, phase="boundary")
        for i, failure in enumerate(failures)
    ]
    trials += [
        trial(8 + i, n_cpu_moe=20 + 4 * i, measured=measurement(42.0 - 3 * i, 1000.0 + 10 * i))
        for i in range(4)
    ]
    for i in range(6):
        is_winner = i % 2 == 0
        params = RESULT["winner"]["params"] if is_winner else {"context": 8192, "parallel": 1}
        measured = measurement(42.0 + i / 5 if is_winner else 22.0 + i / 5)
        repeated = trial(12 + i, phase="confirm", measured=measured)
        trials.append(replace(repeated, candidate=Candidate(params)))
    with Study.create(path, head) as study:
        for one in trials:
            study.write_trial(one)
        study.skip(SkippedCandidate(Candidate({"n_cpu_moe": 1}), Skipped("dominated"), "search"))
        if result is not None:
            study.conclude(result)
    return Study.open(path)
