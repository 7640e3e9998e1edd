"""Studies as machine knowledge keeps them, for tests."""

from __future__ import annotations

from typing import Any

from autofit.knowledge.knowledge_document import KnownMachine, KnownStudy

MACHINE = KnownMachine(
    cpu="a CPU", cpu_count=8, memory_gib=64.0, devices=("CUDA0: a card, 12 GiB",), links=()
)


def known_study(number: int = 1, **changes: Any) -> KnownStudy:
    """Return a study of one launch."""
    data: dict[str, Any] = {
        "id": f"study {number}",
        "finished_at": 1e9 + number,
        "build": "b1",
        "driver": "570",
        "model": {
            "name": "model",
            "digest": "d1",
            "layers": 40,
            "movable_bytes": 4e8,
            "read_bytes": 2e7,
            "fixed_read_bytes": 1e9,
            "kv_bytes": 9e4,
        },
        "context": 8192,
        "parallel": 1,
        "requests": [{"prompt_tokens": 2048, "predicted_tokens": 256}],
        "launches": [
            {
                "settings": {"ubatch": 512, "threads": 8, "load_mode": "none"},
                "devices": {"CUDA0": {"layers": 41.0, "host_layers": 20.0}},
                "first_device": "CUDA0",
                "prompt_s_per_token": 2e-3,
                "generated_s_per_token": 3e-2,
            }
        ],
    }
    return KnownStudy.model_validate({**data, **changes})
