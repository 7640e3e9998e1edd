"""A preset is put into a file that exists, and nothing else of the file changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import make_preset
from ruamel.yaml import YAML

from autofit.errors import UsageError
from autofit.presets.formats.registry import write_preset
from autofit.presets.merge.merge_preset import merge_presets, models_in

MERGEABLE = ("ini", "llama-swap", "compose")


TUNABLE = frozenset({"--n-gpu-layers", "--n-cpu-moe", "--threads", "--ctx-size", "GGML_X"})


INI = """\
; mine
version = 1
[*]
fit = off ; for all

# my own words
; Written by autofit 0.0.1 on 2025-01-01
; model: tiny, proven at full context
; check: 1-2-3
; about tiny
[tiny]
model = /old.gguf   ; was there
ngl = 3
t = 8
chat-template-kwargs = {}  # mine
load-on-startup = true

; of other
[other] ; x
model=/o.gguf
LLAMA_ARG_CTX_SIZE   =  4
"""


def merged(name: str, text: str, *presets) -> str:
    """Return the text with the sample's preset, or those given, in it."""
    return merge_presets(name, text, presets or [make_preset(tunable=TUNABLE)], "FILE")[0]


def test_a_section_is_replaced_and_the_rest_stays():
    """Only settings that a tune may choose change; comments and other sections stay."""
    text, notices = merge_presets(
        "ini", INI, [make_preset(tunable=TUNABLE, arguments=("-ngl", "49", "-c", "8192"))], "FILE"
    )

    before, heading, section = text.partition("; Written by autofit 0.1.0")
    assert before == INI[: INI.index("; Written")] + "; about tiny\n"
    assert "1-2-3" not in heading + section
    assert text.endswith(
        "[tiny]\n"
        "model = /models/tiny.gguf   ; was there\n"
        "n-gpu-layers = 49\n"
        "chat-template-kwargs = {}  # mine\n"
        "load-on-startup = true\n"
        "ctx-size = 8192\n" + INI[INI.index("\n; of other") :]
    )
    assert notices == [
        "kept from the older section: chat-template-kwargs = {}, load-on-startup = true",
        "removed from the older section: t = 8",
        "the section [*] also applies to this model: fit = off",
    ]


YAML_TEXT = """\
# mine
healthCheckTimeout: 60
macros:
    x:   "y"

models:   # all
    # of other
    other: {cmd: "srv ${x}"}

    # Written by autofit 0.0.1 on 2025-01-01
    # check: 1-2-3
    # about tiny
    tiny:
        name: 'Tiny'   # shown
        cmd: >
            old-server --no-warmup -c ${x}
            --threads 4 -hff a --unknown 0.7

        # how long
        ttl: 30
        env: [MINE=1, GGML_X=9]  # two

    # last
    "3": &three
        cmd: a
groups:
  g:
  - tiny
"""


def test_a_llama_swap_model_is_replaced_and_the_rest_stays():
    """Command and variables are new; the entry's other keys and the rest of the file stay."""
    text, notices = merge_presets(
        "llama-swap", YAML_TEXT, [make_preset(tunable=TUNABLE, env={"GGML_X": "3"})], "FILE"
    )
    start, end = YAML_TEXT.index("    # Written"), YAML_TEXT.index("\n    # last")

    assert text.startswith(YAML_TEXT[:start] + "    # about tiny\n    # Written by autofit 0.1.0")
    assert text.endswith(YAML_TEXT[end:])
    data = YAML(typ="safe", pure=True).load(text)["models"]["tiny"]
    assert data["name"] == "Tiny"
    assert data["ttl"] == 30
    assert data["env"] == ["MINE=1", "GGML_X=3"]
    assert "--n-cpu-moe 20\n" in data["cmd"]
    assert "--host 127.0.0.1 --port ${PORT}" in data["cmd"]
    assert data["cmd"].count("--no-warmup") == 1
    for kept in ("# shown", "# how long", "# two"):
        assert kept in text
    assert notices == [
        "kept from the older command: --no-warmup",
        "removed from the older command: --threads 4 -hff a --unknown 0.7",
    ]


def test_a_compose_service_keeps_its_container():
    """The user's image, ports and volumes stay; command and variables are new."""
    old = (
        "services:\n"
        "  tiny:\n"
        "    image: mine:1 # pinned\n"
        "    ports: ['80:8080']\n"
        "    volumes:\n"
        "    - /models:/models\n"
        "    environment:\n"
        "      MINE: $HOME\n"
        "      GGML_X: 9\n"
        "    command: --lora 'a $$b' --alias $NAME\n"
        "x-more: [1]\n"
    )
    text, notices = merge_presets("compose", old, [make_preset(tunable=TUNABLE)], "FILE")
    data = YAML(typ="safe", pure=True).load(text)["services"]["tiny"]

    assert "image: mine:1 # pinned" in text
    assert data["ports"] == ["80:8080"]
    assert data["volumes"] == ["/models:/models"]
    assert data["environment"] == {"MINE": "$HOME"}
    assert data["command"][-4:] == ["--port", "8080", "--lora", "a $$b"]
    assert data["entrypoint"] == ["/app/llama-server"]
    assert text.endswith("x-more: [1]\n")
    assert notices == [
        "kept from the older command: --lora a $$b",
        "removed from the older command: --alias $NAME",
        "the volumes are not changed; check that they contain /models/tiny.gguf",
    ]


@pytest.mark.parametrize("name", MERGEABLE)
def test_merging_twice_changes_nothing(name):
    """A new model is added at the end, and a second merge gives the same text."""
    first = write_preset(name, make_preset())
    other = make_preset(model_name="other", model_path=Path("/models/o.gguf"))
    both = merged(name, first, other)
    again = merged(name, both, make_preset(), other)

    assert both.startswith(first.rstrip("\n"))
    assert models_in(name, both, "FILE") == ["tiny", "other"]
    assert again == both


@pytest.mark.parametrize("name", MERGEABLE)
@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "# no line end"])
def test_an_empty_file_gets_the_first_model(name, text):
    """The entry comes after the comments that are there."""
    found = merged(name, text)

    assert found.startswith(text.strip("\n"))
    assert models_in(name, found, "FILE") == ["tiny"]


@pytest.mark.parametrize("name", MERGEABLE)
def test_windows_line_ends_stay(name):
    """A file of CRLF lines has only such lines after a merge."""
    first = write_preset(name, make_preset(model_name="other")).replace("\n", "\r\n")

    assert merged(name, merged(name, first)).count("\n") == merged(name, first).count("\r\n")


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("ini", "[a]\n--ctx-size = 3\n", "FILE:2: "),
        ("ini", "[tiny]\n[tiny]\n", "2 sections"),
        ("llama-swap", "models: {tiny: {cmd: x}}\n", "FILE:1: .* block"),
        ("llama-swap", "models:\n  tiny: {cmd: x}\n", "FILE:2: .* block"),
        ("llama-swap", "models:\n  a: &a\n    cmd: x\n  tiny: *a\n", "FILE:4: .* block"),
        ("llama-swap", "models:\n  tiny: &a\n    cmd: &c x\nmore: *c\n", "undefined alias"),
        ("llama-swap", "models:\n  tiny: [\n", "FILE:3"),
        ("llama-swap", "- a\n", "not a mapping"),
        ("llama-swap", "a: b\n---\nc: d\n", "cannot merge"),
        ("compose", "services: 3\n", "FILE:1: .* block"),
        ("compose", "a: \x07\n", "cannot merge"),
        ("shell", "", "holds one"),
    ],
)
def test_a_file_that_cannot_be_changed_is_refused(name, text, fault):
    """The error names the line, and nothing is guessed."""
    with pytest.raises(UsageError, match=fault):
        merged(name, text)


names = st.sampled_from(["tiny", "a", "b c", "3"])


keys = st.sampled_from(["cmd", "env", "ttl", "proxy", "name", "aliases", "x-a"])


values = st.sampled_from(
    ["word", "'a b'  # c", '"q"', "|\n{0}  a\n\n{0}  b # no comment", "\n{0}- x\n{0}- y # z",
     "[a, b]", "", "\n{0}  k: v\n\n{0}  # in\n{0}  l: >-\n{0}    m", "~", "&x y"]
)  # fmt: skip


@given(
    st.lists(
        st.tuples(names, st.dictionaries(keys, values, min_size=1)),
        unique_by=lambda pair: pair[0], max_size=3,
    ),
    st.integers(1, 5),
    st.sampled_from(["", "\n", "# end\n", "groups: {a: 1}\n", "\n# c\nz:\n  - 1\n"]),
)  # fmt: skip
def test_every_other_line_of_a_yaml_file_stays(models, step, rest):
    """Lines outside the entry stay the same, in whatever style the file is written."""
    pad, inner = " " * step, " " * (2 * step)
    blocks = {
        name: [f"{pad}# of {name}", f'{pad}"{name}":']
        + [f"{inner}{key}: {value.format(inner)}" for key, value in entry.items()]
        for name, entry in models
    }
    head = "# head\nmodels:\n"
    text = head + "\n\n".join("\n".join(lines) for lines in blocks.values()) + "\n" + rest
    try:
        YAML(typ="safe", pure=True).load(text)
    except Exception:  # noqa: BLE001 - a draw that is no YAML, such as a repeated anchor
        return

    changed = merged("llama-swap", text)

    for name, lines in blocks.items():
        if name != "tiny":
            assert "\n".join(lines) in changed
    assert changed.startswith(head)
    assert changed.endswith(rest)
    data = YAML(typ="safe", pure=True).load(changed)
    assert "llama-server" in data["models"]["tiny"]["cmd"]
    for name, entry in models:
        if name == "tiny":
            assert set(entry) - {"env"} <= set(data["models"]["tiny"])
