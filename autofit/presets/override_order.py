"""Tensor overrides in an order of their own: the first pattern that matches wins.

On a command line `--override-tensor`, `--cpu-moe`, `--n-cpu-moe` and `--n-cpu-ffn` take
effect in the order given. A format that re-orders its options changes their meaning unless
they are written as the one list of patterns that they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autofit.presets.option import Option
from autofit.runtime.discovery.help_text import HelpText

OVERRIDE, CPU_MOE, N_CPU_MOE, N_CPU_FFN = (
    "--override-tensor",
    "--cpu-moe",
    "--n-cpu-moe",
    "--n-cpu-ffn",
)
_KINDS = (OVERRIDE, CPU_MOE, N_CPU_MOE, N_CPU_FFN)
OVERRIDES = frozenset(_KINDS)
# llama.cpp common/common.h: LLM_FFN_EXPS_REGEX and what arg.cpp makes of the flags.
_EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"ffn_(up|down|gate)\."


def kind_of(option: Option) -> str | None:
    """Which of the four kinds of override an option is, None for any other."""
    return next((kind for kind in _KINDS if kind in option.flag.spellings), None)


def keep_order(
    options: Sequence[Option], applied: Sequence[str], help_text: HelpText
) -> tuple[Option, ...]:
    """The options such that applying overrides in the order `applied` changes nothing.

    Where the command line has another order, all overrides become one `--override-tensor`
    in the place of the first.
    """
    kinds = [kind for kind in map(kind_of, options) if kind is not None]
    ranks = [applied.index(kind) for kind in kinds]
    if all(first <= second for first, second in pairwise(ranks)):
        return tuple(options)
    flag = help_text.get(OVERRIDE)
    if flag is None:
        return tuple(options)
    patterns = [text for option in options if (text := _pattern(option))]
    kept: list[Option] = []
    for option in options:
        if kind_of(option) is None:
            kept.append(option)
        elif patterns:
            kept.append(Option(flag, OVERRIDE, ",".join(patterns)))
            patterns = []
    return tuple(kept)


def _pattern(option: Option) -> str:
    kind, value = kind_of(option), option.value or ""
    if kind == OVERRIDE:
        return value
    if kind == CPU_MOE:
        return rf"\.{_EXPERTS}=CPU"
    if kind in (N_CPU_MOE, N_CPU_FFN) and int(value) > 0:
        blocks = "|".join(str(block) for block in range(int(value)))
        return rf"blk\.({blocks})\.{_EXPERTS if kind == N_CPU_MOE else _DENSE}=CPU"
    return ""
