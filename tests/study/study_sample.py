"""Parts of a small study, for tests."""

from __future__ import annotations

from trial.purpose_sample import purpose_of

from autofit.study.fingerprint import Environment
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample
from autofit.trial.outcome import Completed, Outcome
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload(
    "chat", 8192, 1, (Request(1024, 128), Request(4096, 256, weight=0.25)), text="novel.txt"
)
ENVIRONMENT = Environment(
    cpu="AMD Ryzen 9 7950X",
    cpu_count=16,
    memory_mib=64000.0,
    devices=("CUDA0: NVIDIA GeForce RTX 3060, 12288 MiB",),
    driver="NVIDIA 580.95",
    build="11434 (abc123)",
    model_digest="00112233aabbccdd",
)


def header(**changes) -> StudyHeader:
    """Return a header with some fields changed."""
    fields = {
        "autofit_version": "0.1.0",
        "created_at": 1_790_000_000.0,
        "model_path": "/models/Qwen3-30B-A3B-Q4_K_M.gguf",
        "model_name": "Qwen3-30B-A3B-Q4_K_M",
        "runtime_path": "/usr/bin/llama-server",
        "dialect": "llama_server",
        "space": {"parameters": {"n_cpu_moe": {"low": 0, "high": 48}}},
        "workload": WORKLOAD,
        "objective": "request_s",
        "environment": ENVIRONMENT,
        "seed": 7,
        "argv": ("autofit", "tune", "/models/Qwen3-30B-A3B-Q4_K_M.gguf"),
        "options": {"kv_floor": "q8_0", "set": {"parallel": 1}},
    }
    return StudyHeader(**{**fields, **changes})


def measurement(tg_per_s: float = 40.0, pp_per_s: float = 1000.0) -> Measurement:
    """Return two repeats of the workload at the given speeds, with memory over time."""
    samples = [
        Sample(
            prompt_tokens=request.prompt_tokens,
            prompt_s=request.prompt_tokens / pp_per_s,
            ttft_s=request.prompt_tokens / pp_per_s + 0.05,
            predicted_tokens=request.predicted_tokens,
            predicted_s=(request.predicted_tokens - 1) / tg_per_s,
            depth=request.prompt_tokens,
            request=index,
            order=2 * repeat + index,
        )
        for repeat in range(2)
        for index, request in enumerate(WORKLOAD.requests)
    ]
    return Measurement(
        samples=tuple(samples),
        load_s=4.5,
        peak_mib={"CUDA0": 11000.0, "host": 9000.0},
        free_mib={"CUDA0": 900.0, "host": None},
        applied={"n_batch": 2048, "flash_attn": True},
        reported={"CUDA0": ReportedMemory(9000.0, 800.0, 600.0, free_mib=900.0)},
        readings=(MemoryReading(0.5, {"CUDA0": 4000.0}, {"CUDA0": None}),),
    )


def trial(
    number: int,
    outcome: Outcome | None = None,
    *,
    phase: Phase = "search",
    measured: Measurement | None = None,
    **params,
) -> Trial:
    """Return one launch of a plain candidate, by default completed and measured."""
    candidate = Candidate({"n_gpu_layers": 49, "n_cpu_moe": 20, "ubatch": 512, **params})
    return Trial(
        number=number,
        purpose=purpose_of(phase),
        candidate=candidate,
        outcome=outcome or Completed(),
        layout="balanced",
        argv=("llama-server", "-m", "model with space.gguf", "--port", "{port}"),
        env={"GGML_NO_BACKTRACE": "1"},
        measurement=measured or (measurement() if outcome is None else None),
        started_at=1_790_000_100.0 + number,
        seconds=31.5,
        notes=("memory did not come back within 30 s",),
    )
