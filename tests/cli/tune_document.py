"""The JSON schema of the document that `tune --json` prints."""

from __future__ import annotations

from typing import Any


def _object(required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required}


_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0}
_SPEED = {"type": "number", "exclusiveMinimum": 0}
_MAYBE = {"type": ["number", "null"], "minimum": 0}
_WORDS = {"type": "array", "items": {"type": "string"}}
_PARAMS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
_ESTIMATE = _object({"median": _SPEED, "low": _MAYBE, "high": _MAYBE, "n": _COUNT})
_ESTIMATES = _object(
    dict.fromkeys(("pp_per_s", "tg_per_s", "ttft_s", "request_s"), _ESTIMATE)
)  # fmt: skip
_MIB = {"type": "object", "additionalProperties": _MAYBE}
_OUTCOME = _object({"kind": _TEXT, "stage": _TEXT, "evidence": {"type": "string"}})
_HOST_LAYERS = {"type": ["integer", "null"], "minimum": 0}

WINNER = _object({
    "params": _PARAMS,
    "argv": {**_WORDS, "minItems": 3},
    "env": {"type": "object", "additionalProperties": {"type": "string"}},
    "estimates": _ESTIMATES,
    "peak_mib": _MIB,
    "free_mib": _MIB,
    "proven": {"const": True},
})  # fmt: skip

RESULT = _object({
    "study": _TEXT,
    "model": _TEXT,
    "runtime": _TEXT,
    "workload": _TEXT,
    "baseline": _object({
        "params": _PARAMS,
        "argv": _WORDS,
        "estimates": {"type": "object", "additionalProperties": _ESTIMATE},
        "outcome": _OUTCOME,
    }),
    "winner": {"oneOf": [{"type": "null"}, WINNER]},
    "expert_memory": {"type": "array", "items": _object({
        "param": _TEXT, "value": {"type": ["integer", "boolean", "string"]}, "mib": _MIB,
        "source": {"enum": ["memory", "log", "estimate", None]},
        "slots_asked": _HOST_LAYERS, "slots_taken": _HOST_LAYERS, "launches": _COUNT,
        "time_ratio": _MAYBE,
    })},
    "gain": {"oneOf": [{"type": "null"}, _ESTIMATE]},
    "tie": {"type": "boolean"},
    "boundary": {"type": "array", "items": _object({
        "layout": _TEXT,
        "cache_type": _TEXT,
        "ubatch": {"type": "integer", "minimum": 1},
        "n_cpu_moe": _HOST_LAYERS,
        "fits": _HOST_LAYERS,
        "fails": _HOST_LAYERS,
        "outcome": {"type": ["string", "null"]},
        "proven": {"type": "boolean"},
        "source": {"enum": ["launch", "estimate"]},
        "params": {"oneOf": [{"type": "null"}, _PARAMS]},
    })},
    "cliffs": {"type": "array", "items": _object({
        "param": _TEXT, "from": {}, "to": {}, "metric": _TEXT, "ratio": _SPEED,
        "low": _MAYBE, "high": _MAYBE, "layout": {"type": "string"},
        "cache_type": {"type": "string"},
    })},
    "launches": _COUNT,
    "launches_by_phase": _object(
        dict.fromkeys(("baseline", "boundary", "search", "confirm", "prove"), _COUNT)
    ),
    "spent": _object({
        "by_phase": {"type": "array", "items": _object({
            "phase": _TEXT,
            "fidelity": {"enum": ["load", "short", "full", None]},
            "launches": _COUNT,
            "seconds": {"type": "number", "minimum": 0},
        })},
        "by_fidelity": _object({
            "estimate": _object({"questions": _COUNT, "seconds": {"type": "number"}}),
            **dict.fromkeys(
                ("load", "short", "full"),
                _object({"launches": _COUNT, "seconds": {"type": "number"}}),
            ),
        }),
        "own_seconds": {"type": "number", "minimum": 0},
    }),
    "outcomes": {"type": "object", "additionalProperties": _COUNT},
    "seconds": _SPEED,
    "preset": {"type": ["string", "null"]},
    "kv_scores": {"type": "array", "items": _object({
        "cache_type_k": _TEXT, "cache_type_v": _TEXT,
        "verdict": {"enum": ["good", "poor", "unknown"]},
        "holds": {"type": ["boolean", "null"]},
        "reference": _TEXT,
        "quality": {"type": ["object", "null"]},
    })},
})  # fmt: skip
