"""A command line as options, by the runtime's own help."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import SMALL_HELP, real_help

from autofit.errors import UsageError
from autofit.presets.command_options import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE_TENSOR,
    OVERRIDES,
    keep_override_order,
    merge_repeated,
    parse_options,
    with_absolute_paths,
)


def _parse(*arguments: str):
    return parse_options(arguments, SMALL_HELP)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("-c", "4096"), ("--ctx_size", "4096")),
        (("-nkvo",), ("--no-kv-offload",)),
        (("-ngl", "5"), ("--gpu-layers", "5")),
    ],
)
def test_spellings_of_one_flag_mean_the_same(one, other):
    """Short, long and underscore spellings give equal options."""
    assert [o.canonical for o in _parse(*one)] == [o.canonical for o in _parse(*other)]


def test_positive_and_negative_spellings_differ():
    """The spelling switches a pair on or off, and a lone `--no-host` switches something on."""
    on, off, short, alone = _parse("-kvo", "--no-kv-offload", "-nkvo", "--no-host")

    assert [o.is_negative for o in (on, off, short, alone)] == [False, True, True, False]
    assert on.canonical != off.canonical
    assert off.positive_name == "kv-offload"
    assert alone.name == "no-host"


@pytest.mark.parametrize("argument", ["--prefetch", "model.gguf", "--draft", "-"])
def test_an_argument_that_the_help_does_not_list_is_refused(argument):
    """Unknown, positional and removed arguments are named, with another format to use."""
    with pytest.raises(UsageError) as caught:
        _parse("-c", "1", argument)

    assert repr(argument) in caught.value.message
    assert "args" in caught.value.hint


def test_a_missing_value_is_refused():
    """The error names a flag at the end that has no value."""
    with pytest.raises(UsageError, match="value of --threads"):
        _parse("--threads")


def test_a_value_may_look_like_a_flag():
    """The argument after a flag with a value is its value, even if it begins with a dash."""
    threads, context = _parse("--threads", "-1", "-c", "-ngl")

    assert (threads.value, context.value) == ("-1", "-ngl")


def test_repeated_flags_are_merged():
    """Overrides are joined, counts take the larger value, and of other flags the last counts."""
    options = _parse("-ot", "a=CPU", "-ncmoe", "5", "-c", "1", "-ot", "b=CPU", "-ncmoe", "3")
    merged = {o.name: o.value for o in merge_repeated((*options, *_parse("--ctx-size", "2")))}

    assert merged == {"override-tensor": "a=CPU,b=CPU", "n-cpu-moe": "5", "ctx-size": "2"}


def test_named_files_become_absolute():
    """Relative paths become absolute; files of a repository and other values stay."""
    arguments = (
        "-m",
        "a b.gguf",
        "--lora",
        "x.gguf,/y.gguf",
        "-hff",
        "z.gguf",
        "-ot",
        "a/b=CPU",
        "c",
    )

    absolute = with_absolute_paths(arguments, SMALL_HELP, Path("/home"))

    assert absolute[:4] == ("-m", "/home/a b.gguf", "--lora", "/home/x.gguf,/y.gguf")
    assert absolute[4:] == arguments[4:]
    assert with_absolute_paths(arguments, None, Path("/home")) == arguments


@pytest.mark.runtime
def test_negative_flags_of_the_real_help_are_known(llama_cpp):
    """In the real help a flag is negative if and only if its long name says so."""
    help_text = real_help(llama_cpp)
    words = [
        *("--no-host", "--cpu-moe", "-cmoed", "--no-warmup", "-nocb", "-nr", "--repack"),
        *("--no-mmproj", "-no-kvu", "-kvu", "--no-webui", "-no-ag", "--swa-full"),
    ]
    negative = {o.spelling for o in parse_options(words, help_text) if o.is_negative}

    assert negative == {
        *("--no-warmup", "-nocb", "-nr", "--no-mmproj", "-no-kvu", "--no-webui", "-no-ag")
    }


TENSORS = [
    f"blk.{block}.{name}.weight"
    for block in (0, 1, 2, 11, 12)
    for name in ("ffn_up_exps", "ffn_gate_up_exps", "ffn_down_chexps", "ffn_up_shexp", "ffn_up")
]


def _tensor_places(options) -> list[str]:
    """Return the place of each tensor by llama.cpp's rule: the first pattern that matches."""
    patterns: list[tuple[str, str]] = []
    for option in options:
        kind, value = option.override_kind, option.value
        if kind == OVERRIDE_TENSOR:
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
    st.sampled_from(list(permutations(OVERRIDES))),
)
def test_tensors_keep_their_place_in_any_order_of_overrides(pairs, applied):
    """Every tensor has the same place in whatever order a format applies overrides."""
    options = parse_options([word for pair in pairs for word in pair], SMALL_HELP)

    kept = merge_repeated(keep_override_order(options, applied, SMALL_HELP))
    reordered = sorted(
        (option for option in kept if option.override_kind),
        key=lambda option: applied.index(option.override_kind),
    )

    assert _tensor_places(reordered) == _tensor_places(options)
    assert [o.value for o in kept if o.name == "ctx-size"] == ["4096"] * (("-c", "4096") in pairs)


def test_overrides_in_the_order_of_the_format_stay():
    """Options stay as they are where the format's own order means the same."""
    options = parse_options(["-ncmoe", "20", "-ot", "a=CPU"], SMALL_HELP)

    assert keep_override_order(options, (N_CPU_MOE, OVERRIDE_TENSOR), SMALL_HELP) == options
