"""The settings that a server applied, compared with the requested ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_llama_cpp import server_log

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.server.applied_settings import find_unapplied, padded_context, read_applied
from autofit.trial.candidate import Candidate, ParamValue


@pytest.mark.parametrize(
    ("requested", "applied"),
    [
        ({"context": 1000, "parallel": 1}, {"context": 1024, "context_per_slot": 1024}),
        ({"context": 1000, "parallel": 3}, {"context": 1536, "context_per_slot": 512}),
        (
            {"context": 1000, "parallel": 3, "kv_unified": True},
            {"context": 1024, "context_per_slot": 1024, "kv_unified": True},
        ),
        ({"context": 1000, "batch": 2048}, {"batch": 1000}),
        ({"context": 1000, "batch": 300, "ubatch": 600}, {"batch": 300, "ubatch": 300}),
        ({"context": 9000, "batch": 300, "ubatch": 0}, {"batch": 300, "ubatch": 300}),
        ({"context": 0, "batch": 512}, {"context": 32768, "batch": 512}),
        ({"flash_attn": "on"}, {"flash_attn": "enabled"}),
        ({"flash_attn": "auto"}, {"flash_attn": "disabled"}),
        ({"load_mode": "auto"}, {"load_mode": "mmap"}),
        ({"n_gpu_layers": 99}, {"n_gpu_layers": 9}),
        ({"n_gpu_layers": "all"}, {"n_gpu_layers": 9}),
        ({"parallel": -1}, {"parallel": 4}),
        ({"n_cpu_moe": 3}, {}),
        ({"moe_cache_mib": 1024}, {"moe_cache_mib": 1023.19}),
        # 131,072 tokens for four slots of a model trained on 32,768: each slot is capped.
        (
            {"context": 131072, "parallel": 4, "kv_unified": True},
            {"context": 131072, "context_per_slot": 32768},
        ),
    ],
)
def test_changes_by_rule_are_expected(
    requested: dict[str, ParamValue], applied: dict[str, ParamValue]
) -> None:
    """Padding, limits and the runtime's own choices are not silent changes."""
    assert find_unapplied(Candidate(requested), applied, units=9) is None


@pytest.mark.parametrize(
    ("requested", "applied", "evidence"),
    [
        ({"context": 8192}, {"context": 4096}, "context 8192,"),
        ({"context": 65536}, {"context": 65536, "context_per_slot": 32768}, "32768 for each slot"),
        ({"context": 1000, "parallel": 3}, {"context": 1024}, "applied 1024"),
        ({"batch": 2048, "context": 4096}, {"batch": 512}, "batch 2048,"),
        ({"ubatch": 1024}, {"ubatch": 512}, "ubatch 1024"),
        ({"flash_attn": "on"}, {"flash_attn": "disabled"}, "flash_attn on"),
        ({"flash_attn": "off"}, {"flash_attn": True}, "flash_attn off"),
        ({"cache_type_k": "q8_0"}, {"cache_type_k": "f16"}, "applied f16"),
        ({"load_mode": "none"}, {"load_mode": "mmap"}, "load_mode none"),
        ({"parallel": 4}, {"parallel": 1}, "parallel 4"),
        ({"n_gpu_layers": 99}, {"n_gpu_layers": 8}, "n_gpu_layers 99"),
        ({"kv_unified": False}, {"kv_unified": "true"}, "kv_unified off"),
    ],
)
def test_silent_change_is_rejected(
    requested: dict[str, ParamValue], applied: dict[str, ParamValue], evidence: str
) -> None:
    """A candidate with a silently changed setting is rejected, and the evidence names it."""
    outcome = find_unapplied(Candidate(requested), applied, units=9)
    assert outcome is not None
    assert (outcome.kind, outcome.reason) == ("rejected", "not_applied")
    assert evidence in outcome.evidence


def test_props_are_read() -> None:
    """Values of the expected form are read from the response."""
    dialect = load_dialect("llama_server")
    props = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 3, "model_path": None}
    assert read_applied(dialect, props) == {"context_per_slot": 512, "parallel": 3}
    assert read_applied(dialect, {"default_generation_settings": []}) == {}


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("context", "parallel", "unified"), [(1000, 3, False), (1000, 3, True), (5000, 2, False)]
)
def test_real_server_pads_by_the_same_rule(
    context: int,
    parallel: int,
    unified: bool,  # noqa: FBT001
    llama_cpp: Path,
    tmp_path: Path,
) -> None:
    """llama-server allocates memory for exactly as many tokens as predicted."""
    model = tmp_path / "tiny.gguf"
    write_model(SynthSpec(layers=1, experts=0, embd=256, vocab=512, header_only=True), model)
    words = ["-c", str(context), "-np", str(parallel), "-b", "300", "-ub", "600"]
    words += ["--kv-unified" if unified else "--no-kv-unified", "-fit", "off"]
    log = server_log(llama_cpp, model, tmp_path / "log", *words)
    found = {
        name: int(value)
        for name, value in re.findall(r"llama_context: n_(ctx|batch|ubatch) += (\d+)", log)
    }
    assert found["ctx"] == padded_context(context, 1 if unified else parallel)
    assert (found["batch"], found["ubatch"]) == (300, 300)
