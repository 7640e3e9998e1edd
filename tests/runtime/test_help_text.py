"""The flags of real help texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.runtime.discovery.help_text import HelpText, parse_help

FOLDER = Path(__file__).parent.parent / "data" / "help"
SERVER = "llama-server-b11434"
FORK = "llama-server-prefetch-fork-b9862"


def read(name: str) -> HelpText:
    """Return a recorded help text."""
    return parse_help((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [SERVER, FORK])
def test_every_option_is_read(name: str) -> None:
    """Every line that begins with a dash is an option with all its spellings."""
    help_text = read(name)
    heads = [line for line in help_text.text.splitlines() if line.startswith("-")]
    spellings = [
        word.rstrip(",")
        for head in heads[1:]  # the first is the title of a section
        for word in (head[:40] if head[37:40].isspace() else head).split()
        if word.startswith("-") and word.strip("-")
    ]
    assert len(spellings) > 390
    assert [word for word in spellings if word not in help_text.flags] == []


@pytest.mark.parametrize(
    ("spelling", "hint", "default", "env"),
    [
        ("-c", "N", "0", "LLAMA_ARG_CTX_SIZE"),
        ("--ctx-size", "N", "0", "LLAMA_ARG_CTX_SIZE"),
        ("-ngl", "N", "auto", "LLAMA_ARG_N_GPU_LAYERS"),
        ("--gpu-layers", "N", "auto", "LLAMA_ARG_N_GPU_LAYERS"),
        ("-ncmoe", "N", None, "LLAMA_ARG_N_CPU_MOE"),
        ("-fa", "[on|off|auto]", "auto", "LLAMA_ARG_FLASH_ATTN"),
        ("-dev", "<dev1,dev2,..>", None, "LLAMA_ARG_DEVICE"),
        ("-ot", "<tensor name pattern>=<buffer type>,...", None, "LLAMA_ARG_OVERRIDE_TENSOR"),
        ("--no-kv-offload", None, "enabled", "LLAMA_ARG_KV_OFFLOAD"),
        ("--swa-full", None, "false", "LLAMA_ARG_SWA_FULL"),
        ("--op-offload", None, "true", None),
        ("--version", None, None, None),
        ("--webui", None, "enabled", "LLAMA_ARG_UI"),
        ("--metrics", None, "disabled", "LLAMA_ARG_ENDPOINT_METRICS"),
    ],
)
def test_details_of_an_option_are_read(
    spelling: str, hint: str | None, default: str | None, env: str | None
) -> None:
    """The value hint, default and variable are found, also in wrapped text."""
    flag = read(SERVER).get(spelling)
    assert flag is not None
    assert (flag.hint, flag.default, flag.env) == (hint, default, env)


@pytest.mark.parametrize(
    ("spelling", "allowed"),
    [
        ("-ctk", "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"),
        ("--load-mode", "auto none mmap mlock mmap+mlock dio"),
        ("-sm", "none layer row tensor"),
        ("-fa", "on off auto"),
        ("--cpu-strict", "0 1"),
        ("--ctx-size", ""),
        ("--tensor-split", ""),
        ("--kv-offload", ""),
    ],
)
def test_allowed_values_are_found_in_every_form(spelling: str, allowed: str) -> None:
    """Allowed values are found in a list, in bullets and in the hint."""
    flag = read(SERVER).get(spelling)
    assert flag is not None
    assert flag.allowed == tuple(allowed.split())


@pytest.mark.parametrize("spelling", ["--draft-max", "--spec-ngram-size-n", "--draft"])
def test_removed_flag_is_absent(spelling: str) -> None:
    """A flag that the program recognises only to refuse it is not supported."""
    help_text = read(SERVER)
    assert help_text.flags[spelling].is_removed
    assert spelling not in help_text


def test_old_and_new_builds_differ() -> None:
    """A build has either the load-mode flag or the older flags."""
    new, old = read(SERVER), read(FORK)
    assert "--load-mode" in new
    assert "--no-mmap" not in new
    assert "--load-mode" not in old
    assert all(flag in old for flag in ("--no-mmap", "--mmap", "--mlock"))
    assert "--n-cpu-ffn" not in old


def test_deprecated_flag_is_supported() -> None:
    """A deprecated flag is not a removed one."""
    assert "--defrag-thold" in read(SERVER)


def test_llama_bench_is_read() -> None:
    """Indented options with values in angle brackets are read."""
    bench = read("llama-bench-b11434")
    assert bench.flags["-fa"].allowed == ("on", "off", "auto")
    assert bench.flags["--load-mode"].default == "auto"
    assert bench.flags["-ncmoe"].hint == "<n>"
    assert bench.flags["-pg"].allowed == ()
    assert "-c" not in bench


def test_ik_llama_is_read() -> None:
    """The layout of ik_llama.cpp's help is read."""
    ik = read("ik-llama-server")
    assert ik.flags["--flash-attn"].allowed == ("auto", "on", "off", "0", "1")
    assert ik.flags["-sm"].allowed == ("none", "graph", "layer")
    assert ik.flags["--embeddings"].spellings == ("--embedding", "--embeddings")
    assert ik.flags["--cache-ram-n-min"].hint == "N"
    assert ik.flags["--merge-qkv"].hint is None
    assert ik.flags["--fit"].hint is None
    assert ik.flags["--spec-type"].hint == "SPEC[:k=v,...]"
    assert ik.flags["--model"].text.endswith("ggml-model-f16.gguf)")


@pytest.mark.parametrize(
    ("spelling", "synonyms"),
    [
        ("-nkvo", ("-nkvo", "--no-kv-offload")),
        ("--kv-offload", ("-kvo", "--kv-offload")),
        ("--no-repack", ("-nr", "--no-repack")),
        ("--repack", ("--repack",)),
        ("-no-kvu", ("-no-kvu", "--no-kv-unified")),
        ("--no-host", ("--no-host",)),
        ("--gpu-layers", ("-ngl", "--gpu-layers", "--n-gpu-layers")),
        ("--mmproj-auto", ("--mmproj-auto",)),
    ],
)
def test_synonyms_exclude_the_opposite_switch(spelling: str, synonyms: tuple[str, ...]) -> None:
    """The spellings of a switch and of its opposite are separate synonyms of one option."""
    flag = read(SERVER).get(spelling)
    assert flag is not None
    assert flag.synonyms(spelling) == synonyms


@given(st.text(max_size=400))
def test_any_text_is_accepted(text: str) -> None:
    """A text that is not a help text causes no error."""
    assert parse_help(text).text == text


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"-[a-z]{1,5}", fullmatch=True),
            st.from_regex(r"--[a-z][a-z-]{0,20}[a-z]", fullmatch=True),
            st.sampled_from([None, "N", "FNAME", "[on|off]", "<a,b,..>"]),
            st.from_regex(r"[a-z][a-z ]{0,60}[a-z]", fullmatch=True),
        ),
        max_size=8,
        unique_by=(lambda option: option[0], lambda option: option[1]),
    )
)
def test_printed_options_are_read_back(
    options: list[tuple[str, str, str | None, str]],
) -> None:
    """Options in llama.cpp's layout (text in column 40, wrapped head) are read back."""
    lines = []
    for short, long, hint, text in options:
        head = f"{short},".ljust(7) + long + (f" {hint}" if hint else "")
        wide = len(head) > 37
        lines += [head, " " * 40 + text] if wide else [head.ljust(40) + text]
    flags = parse_help("\n".join(lines)).flags
    for short, long, hint, text in options:
        flag = flags[long]
        assert flag is flags[short]
        assert (flag.hint, flag.text) == (hint, text)
