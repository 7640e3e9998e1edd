"""The settings of one launch, its command, and the time that its stages may take."""

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
    "numa",
    "op_offload",
    "op_offload_min_batch",
    *PREFETCH_PARAMS,
    "moe_cache_mib",
)
# The tokens that the default limits allow for: 50 prompt tokens and one generated token a second.
_USUAL_PROMPT_TOKENS = 30_000
_USUAL_PREDICTED_TOKENS = 600
# A token at the end of a long prompt may take this many times as long as in a short prompt.
_LONG_PROMPT_FACTOR = 4.0
_RANK = {name: rank for rank, name in enumerate(PARAM_ORDER)}


def _canonical(params: Params) -> dict[str, ParamValue]:
    ordered = sorted(params, key=lambda name: (_RANK.get(name, len(_RANK)), name))
    return {name: params[name] for name in ordered}


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Complete runtime settings for one launch; candidates with equal params are equal.

    A parameter that is absent has the runtime's default.
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
        """Return the candidate with some params changed, or removed if the change is None."""
        merged = {**self.params, **changes}
        return Candidate({k: v for k, v in merged.items() if v is not None})

    def get_int(self, name: str, default: int) -> int:
        """Return the integer set for a parameter, or the default if it is absent or 'auto'."""
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
        """Return the text of a parameter's value, or the default if it is absent."""
        return str(self.params.get(name, default))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Candidate({dict(self.params)})"


@dataclass(frozen=True, slots=True)
class Limits:
    """The seconds that each stage of a launch may take.

    `prompt_s` is for prompts of up to `prompt_tokens`, `generate_s` for answers of usual length.
    Longer ones may take proportionally more: on slow machines a prompt that fills a large
    context takes a quarter of an hour.
    """

    load_s: float = 600.0
    prompt_s: float = 600.0
    generate_s: float = 600.0
    stop_s: float = 20.0
    prompt_tokens: int = _USUAL_PROMPT_TOKENS

    def at_most(self, seconds: float) -> Limits:
        """Return the limits, each of them at most `seconds`."""
        return replace(
            self,
            load_s=min(self.load_s, seconds),
            prompt_s=min(self.prompt_s, seconds),
            generate_s=min(self.generate_s, seconds),
        )

    def prompt_limit_for_s(self, tokens: int) -> float:
        """Return the seconds until the first token for prompts of `tokens` in total."""
        return self.prompt_s * max(1.0, tokens / self.prompt_tokens)

    def with_usual_token_time(self, tokens: int, token_s: float) -> Limits:
        """Return the limits for a prompt of `tokens` if earlier ones took `token_s` per token.

        A launch that is many times slower would use up the budget.
        """
        usual_s = max(self.prompt_s, _LONG_PROMPT_FACTOR * token_s * tokens)
        limit_s = min(self.prompt_limit_for_s(tokens), usual_s)
        return replace(self, prompt_s=limit_s, prompt_tokens=max(tokens, self.prompt_tokens))

    def generate_limit_for_s(self, tokens: int) -> float:
        """Return the seconds for generating `tokens` in total."""
        return self.generate_s * max(1.0, tokens / _USUAL_PREDICTED_TOKENS)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The command that starts a candidate.

    `argv` begins with the wrapper, if any, and the program; `{port}` in it stands for the port
    that is chosen at the launch. `env` has only what is added to the scrubbed environment.
    `shown_argv` and `shown_env` are the same without secrets, for everything that is stored or
    printed; None if there are none.
    """

    candidate: Candidate
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shown_argv: tuple[str, ...] | None = None
    shown_env: Mapping[str, str] | None = None

    @property
    def shown(self) -> LaunchPlan:
        """The plan with hidden secrets, to store or print. It cannot be launched."""
        argv = self.argv if self.shown_argv is None else self.shown_argv
        env = self.env if self.shown_env is None else self.shown_env
        return LaunchPlan(self.candidate, argv, env, self.limits)
