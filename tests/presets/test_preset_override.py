"""Formats that re-order overrides still mean what the command line meant."""

from __future__ import annotations

import re
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import SMALL_HELP

from autofit.presets.option import each_once, parse_options
from autofit.presets.override_order import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE,
    keep_order,
    kind_of,
)

TENSORS = [
    f"blk.{block}.{name}.weight"
    for block in (0, 1, 2, 11, 12)
    for name in ("ffn_up_exps", "ffn_gate_up_exps", "ffn_down_chexps", "ffn_up_shexp", "ffn_up")
]


def _placed(options) -> list[str]:
    """Where each tensor goes, by llama.cpp's rule: the first pattern that is found."""
    patterns: list[tuple[str, str]] = []
    for option in options:
        kind, value = kind_of(option), option.value
        if kind == OVERRIDE:
            patterns += [tuple(pair.split("=", 1)) for pair in value.split(",")]
        elif kind == CPU_MOE:
            patterns.append((r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU"))
        elif kind in (N_CPU_MOE, N_CPU_FFN):
            tail = r"_(ch|)exps" if kind == N_CPU_MOE else r"\."
            names = "(up|down|gate|gate_up)" if kind == N_CPU_MOE else "(up|down|gate)"
            patterns += [(rf"blk\.{i}\.ffn_{names}{tail}", "CPU") for i in range(int(value))]
    return [
        next((place for pattern, place in patterns if re.search(pattern, name)), "default")
        for name in TENSORS
    ]


override = st.one_of(
    st.tuples(
        st.just("-ot"),
        st.lists(
            st.sampled_from(
                [r"blk\.1\.ffn=CUDA0", r"blk\.(0|2)\.=CUDA1", "exps=CUDA0", "ffn_up=CPU"]
            ),
            min_size=1,
            max_size=3,
        ).map(",".join),
    ),
    st.tuples(st.just("-ncmoe"), st.integers(0, 13).map(str)),
    st.tuples(st.just("-ncffn"), st.integers(0, 13).map(str)),
    st.tuples(st.just("-cmoe")),
    st.tuples(st.just("-c"), st.just("4096")),
)


@given(
    st.lists(override, max_size=6),
    st.sampled_from(list(permutations((OVERRIDE, CPU_MOE, N_CPU_MOE, N_CPU_FFN)))),
)
def test_any_order_of_application_places_tensors_alike(words, applied):
    """Whatever order a format applies overrides in, every tensor lands where it was meant."""
    options = parse_options([word for pair in words for word in pair], SMALL_HELP)

    kept = each_once(keep_order(options, applied, SMALL_HELP))
    reordered = sorted(
        (option for option in kept if kind_of(option)),
        key=lambda option: applied.index(kind_of(option)),
    )

    assert _placed(reordered) == _placed(options)
    assert [o.value for o in kept if o.name == "ctx-size"] == ["4096"] * (("-c", "4096") in words)


def test_order_that_suits_the_format_is_left_alone():
    """Nothing is rewritten where the format's own order already means the same."""
    options = parse_options(["-ncmoe", "20", "-ot", "a=CPU"], SMALL_HELP)

    assert keep_order(options, (N_CPU_MOE, OVERRIDE), SMALL_HELP) == options
