"""A full assignment of runtime settings, and what it takes to launch it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from autofit.trial.parameter_groups import KV_TYPE_PARAMS, PLACEMENT_PARAMS, PREFETCH_PARAMS

ParamValue = str | int | float | bool
Params = Mapping[str, ParamValue]

# The order in which people read a launch command; unknown parameters follow by name.
PARAM_ORDER = (
    *PLACEMENT_PARAMS,
    "context",
    "parallel",
    "batch",
    "ubatch",
    *KV_TYPE_PARAMS,
    "flash_attn",
    "load_mode",
    "threads",
    "threads_batch",
    "op_offload_min_batch",
    *PREFETCH_PARAMS,
    "moe_cache_mib",
)
# The most tokens that a request's usual time is for: by default 50 of a prompt in a second, and
# one generated.
_USUAL_PROMPT_TOKENS = 30_000
_USUAL_PREDICTED_TOKENS = 600
# How many times as long a token may take at the end of a long prompt as in a short one.
_CRAWL = 4.0
_RANK = {name: rank for rank, name in enumerate(PARAM_ORDER)}


def _canonical(params: Params) -> dict[str, ParamValue]:
    ordered = sorted(params, key=lambda name: (_RANK.get(name, len(_RANK)), name))
    return {name: params[name] for name in ordered}


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Params that are to be tried together; equal params are the same candidate.

    A parameter that is absent is left to the runtime's default.
    """

    params: Params

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(_canonical(self.params)))

    @property
    def key(self) -> str:
        """A short digest of the params, the same in every process."""
        text = json.dumps(dict(self.params), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def with_params(self, **changes: ParamValue | None) -> Candidate:
        """The candidate with some params changed, or removed where the change is None."""
        merged = {**self.params, **changes}
        return Candidate({k: v for k, v in merged.items() if v is not None})

    def get_int(self, name: str, default: int) -> int:
        """The whole number set for a parameter, or the default where it is absent or 'auto'."""
        value = self.params.get(name, default)
        try:
            return int(value)
        except ValueError:
            return default

    def get_amount(self, name: str) -> int:
        """Return the number set for a parameter; a switch that is on counts as 1."""
        value = self.params.get(name, 0)
        return int(value == "on") if value in ("on", "off") else self.get_int(name, 0)

    def get_str(self, name: str, default: str) -> str:
        """The text of a parameter's value, or the default where it is absent."""
        return str(self.params.get(name, default))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Candidate({dict(self.params)})"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each stage of a launch may take, in seconds.

    `prompt_s` is for prompts of up to `prompt_tokens`, `generate_s` for answers of usual length;
    longer ones may take more, in proportion: a prompt that fills a large context takes slow
    machines a quarter of an hour.
    """

    load_s: float = 600.0
    prompt_s: float = 600.0
    generate_s: float = 600.0
    stop_s: float = 20.0
    prompt_tokens: int = _USUAL_PROMPT_TOKENS

    def of_prompt_s(self, tokens: int) -> float:
        """Seconds that prompts of so many tokens together may take until the first token."""
        return self.prompt_s * max(1.0, tokens / self.prompt_tokens)

    def at_rate(self, tokens: int, token_s: float) -> Limits:
        """The limits for prompts of so many tokens where others took `token_s` a token.

        What takes many times as long crawls, and would eat up the time of all else.
        """
        usual_s = max(self.prompt_s, _CRAWL * token_s * tokens)
        limit_s = min(self.of_prompt_s(tokens), usual_s)
        return replace(self, prompt_s=limit_s, prompt_tokens=max(tokens, self.prompt_tokens))

    def of_generation_s(self, tokens: int) -> float:
        """Seconds that so many tokens together may take after the first."""
        return self.generate_s * max(1.0, tokens / _USUAL_PREDICTED_TOKENS)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything needed to start one candidate; making it has no side effects.

    `argv` begins with the wrapper, if any, and the program; `env` holds only what is set
    on top of the scrubbed environment; `{port}` in argv stands for the port chosen at launch.
    """

    candidate: Candidate
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
