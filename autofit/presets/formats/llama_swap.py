"""A configuration of llama-swap, which starts and stops servers as models are asked for.

`cmd` is split as a POSIX shell splits words, without expanding anything; before that its
comment lines go, and `${NAME}` is a macro wherever it stands
(https://github.com/mostlygeek/llama-swap, config-schema.json and docs/configuration.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.formats.yaml_text import indented, quoted
from autofit.presets.heading import heading, note
from autofit.presets.older_command import older_words
from autofit.presets.option import flag_groups
from autofit.text_format import one_line

MODELS = "models"
PORT_MACRO = "${PORT}"
# llama-swap gives up on a model after 120 s; a large one is read from disk for longer.
_LOAD_LIMIT_S = 900
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def write(facts: PresetFacts) -> str:
    """The preset as a configuration with one model."""
    return write_many([facts])


def write_many(presets: Sequence[PresetFacts]) -> str:
    """The presets as one configuration.

    Raises:
        UsageError: a word or a variable has no place in one.
    """
    lines = [
        "# start with: llama-swap --config THIS_FILE",
        f"healthCheckTimeout: {_LOAD_LIMIT_S}  # seconds that a model may take to load",
        "",
        f"{MODELS}:",
    ]
    for facts in presets:
        lines += indented([*comments(facts), f"{entry_key(facts)}:"], 2)
        for part in entry(facts).values():
            lines += indented(part, 4)
    return "\n".join(lines) + "\n"


def entry_name(facts: PresetFacts) -> str:
    """The model's id in requests."""
    plain = " ".join(one_line(facts.model_name).split())
    return re.sub(r"[${}]+", "-", plain).strip(" -") or "model"


def entry_key(facts: PresetFacts) -> str:
    """The model's id as a key of YAML."""
    return quoted(entry_name(facts))


def comments(facts: PresetFacts) -> list[str]:
    """The heading of a model, as comments."""
    return [f"# {line}" for line in (*heading(facts), *map(note, needs(facts)))]


def needs(facts: PresetFacts) -> list[str]:
    """What the configuration does otherwise than the preset says."""
    own = shlex.join(
        word for pair in facts.own_address.items() if pair[1] not in facts.address for word in pair
    )
    return (
        [f"llama-swap chooses the address itself, so this one is left out: {own}"] if own else []
    )


def entry(facts: PresetFacts, more: Sequence[str] = ()) -> Mapping[str, list[str]]:
    """The settings of a model by key, each as lines of YAML; `more` words end the command.

    Raises:
        UsageError: a word or a variable has no place in them.
    """
    parts = {"cmd": _command(facts, more)}
    if facts.env:
        values = [_variable(name, value) for name, value in facts.env.items()]
        parts["env"] = ["env:", *(f"  - {quoted(value)}" for value in values)]
    parts["proxy"] = [f"proxy: http://127.0.0.1:{PORT_MACRO}"]
    return parts


def merged_entry(
    facts: PresetFacts, old: Mapping[str, Any]
) -> tuple[Mapping[str, list[str]], list[str]]:
    """The settings for an entry that is there, and what a user should know of the change.

    What it says beside, in keys, options and variables, stays.
    """
    try:
        words = command_words(str(old.get("cmd") or ""))
    except ValueError:  # llama-swap could not split it either
        words = []
    older = older_words(words, facts, lambda word: "${" in word)
    parts = dict(entry(facts, older.kept))
    if PORT_MACRO in str(old.get("proxy") or ""):
        del parts["proxy"]
    others = [
        f"  - {quoted(text)}"
        for text in map(str, old.get("env") or ())
        if (name := text.partition("=")[0]) not in facts.env and not facts.decides((name,))
    ]
    own = parts.get("env", ["env:"])
    parts["env"] = [own[0], *others, *own[1:]] if others or own[1:] else []
    return parts, older.notices


def command_words(text: str) -> list[str]:
    """The words of a `cmd`, as llama-swap splits it; macros are left as they are.

    Raises:
        ValueError: a quote is left open.
    """
    lines = [line for line in text.split("\n") if not line.strip().startswith("#")]
    plain = [line.rstrip().removesuffix("\\") + " " for line in lines]
    return shlex.split("\n".join(plain))


def _command(facts: PresetFacts, more: Sequence[str]) -> list[str]:
    address = " ".join(word.replace("{port}", PORT_MACRO) for word in facts.address)
    start = " ".join(map(_word, (*facts.wrapper, *facts.command)))
    words = (*facts.served_at(()), *more)
    groups = (" ".join(map(_word, group)) for group in flag_groups(words))
    lines = [start, *groups, address]
    if all(line.replace("\t", "").isprintable() for line in lines):
        return ["cmd: |", *indented(lines, 2)]
    return [f"cmd: {quoted(' '.join(lines))}"]


def _word(word: str) -> str:
    if "\n" in word:
        raise UsageError(
            f"a llama-swap command cannot hold {word!r}: it has more than one line",
            "change the value, or use the formats `args` or `shell`",
        )
    # Two quoted parts side by side are one word, but no macro.
    return shlex.quote(word).replace("${", "$''{")


def _variable(name: str, value: str) -> str:
    fault = ""
    if not _VARIABLE.fullmatch(name):
        fault = "its name is to be in capitals"
    elif "\n" in value or "\r" in value:
        fault = "it has more than one line"
    elif "${" in value:
        fault = "`${` would begin a macro"
    if fault:
        raise UsageError(
            f"a llama-swap configuration cannot hold the variable {name}: {fault}",
            "use the formats `args` or `shell`",
        )
    return f"{name}={value}"
