"""llama-server's router presets: `llama-server --models-preset FILE`.

The grammar has traps: keys without dashes, no quoting, a value that ends at the first `;` or
`#`, one unknown key spoils the whole file, and options are applied in an order of the
router's own (https://github.com/ggml-org/llama.cpp, common/preset.cpp).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.heading import heading, note
from autofit.presets.option import Option, each_once, parse_options
from autofit.presets.override_order import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE,
    keep_order,
)
from autofit.runtime.discovery.help_text import HelpText
from autofit.text_format import one_line

# The router applies options in byte order of their first spelling: -cmoe, -ncffn, -ncmoe, -ot.
_APPLIED = (CPU_MOE, N_CPU_FFN, N_CPU_MOE, OVERRIDE)
_MODEL = {"--model", "--alias"}
_COMMENT = "; "
EVERY_MODEL = "*"


def write(facts: PresetFacts) -> str:
    """The preset as an INI file with one section."""
    return write_many([facts])


def write_many(presets: Sequence[PresetFacts]) -> str:
    """The presets as one INI file, a section for each; what all say alike is said once.

    Raises:
        UsageError: an argument or value has no place in such a file.
    """
    first = presets[0]
    lines = []
    if not any(facts.env or facts.wrapper for facts in presets):
        lines.append(f"{_COMMENT}start with: {start_line(first)}")
    if len({(*facts.env.items(), facts.wrapper) for facts in presets}) > 1:
        told = "these models need different surroundings, but one router gives all the same"
        lines.append(_COMMENT + note(told))
    lines += ["version = 1", ""]
    sections = [dict(entry(facts)) for facts in presets]
    shared = _shared(sections) if len(sections) > 1 else {}
    if shared:
        lines += [f"[{EVERY_MODEL}]", *(f"{key} = {value}" for key, value in shared.items()), ""]
    for facts, section in zip(presets, sections, strict=True):
        lines += [*comments(facts), f"[{entry_name(facts)}]"]
        own = {key: value for key, value in section.items() if key not in shared}
        lines += [*(f"{key} = {value}" for key, value in own.items()), ""]
    return "\n".join(lines[:-1]) + "\n"


def comments(facts: PresetFacts) -> list[str]:
    """The heading of a section, as comments."""
    return [_COMMENT + line for line in (*heading(facts), *map(note, needs(facts)))]


def needs(facts: PresetFacts) -> list[str]:
    """What the file cannot see to itself."""
    if not facts.env and not facts.wrapper:
        return []
    start = start_line(facts)
    return [f"start the router exactly so, its models inherit what is set here: {start}"]


def entry(facts: PresetFacts) -> Mapping[str, str]:
    """The section's keys and values, the model first.

    Raises:
        UsageError: an argument or value has no place in such a file.
    """
    found = {"model": _checked("model", str(facts.model_path), facts)}
    for option in ini_options(facts):
        key, value = _key_and_value(option)
        found[key] = _checked(key, value, facts)
    return found


def _shared(sections: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *others = sections
    return {
        key: value
        for key, value in first.items()
        if key != "model" and all(other.get(key) == value for other in others)
    }


def ini_options(facts: PresetFacts) -> tuple[Option, ...]:
    """What the section says besides its model, each flag once.

    Raises:
        UsageError: the runtime has no help, or does not list an argument.
    """
    if facts.help is None:
        raise UsageError(
            "the flags of this runtime are not known, so an ini preset cannot be checked",
            "name one with `--runtime PATH`, or use the formats `args`, `shell` or `json`",
        )
    options = parse_options(facts.served_arguments, facts.help)
    ours = [option for option in options if not _is_routers(option, facts)]
    return each_once(keep_order(ours, _APPLIED, facts.help))


def entry_name(facts: PresetFacts) -> str:
    """The section's name."""
    return section_name(facts.model_name)


def section_name(model_name: str) -> str:
    """A section name that the router takes and shows unchanged.

    It changes the case of what follows a `:`, and takes `*` for the defaults of all models.
    """
    plain = " ".join(one_line(model_name).split())
    name = re.sub(r"[\[\]:\\]+", "-", plain).strip(" -")
    return "model" if name in ("", "*", "default") else name


def differences(
    meant: Iterable[Option], shown: Sequence[str], help_text: HelpText, reserved: Iterable[str]
) -> list[str]:
    """What a router would start otherwise than meant, in words; empty where it is the same.

    `shown` are a model's `status.args` in the router's `/models`, without the program. The
    order between options does not count, nor does what the router adds itself.
    """
    ignored = {f"--{key}" for key in reserved} | _MODEL
    wanted = Counter(option.canonical for option in meant)
    found = Counter(
        option.canonical
        for option in parse_options(shown, help_text)
        if not ignored & set(option.flag.spellings)
    )
    lines = [f"missing: {name} {value or ''}".rstrip() for name, value in (wanted - found)]
    return lines + [f"added: {name} {value or ''}".rstrip() for name, value in (found - wanted)]


def _is_routers(option: Option, facts: PresetFacts) -> bool:
    ours = {f"--{key}" for key in facts.ini.reserved} | _MODEL
    return bool(ours & set(option.flag.spellings))


def _key_and_value(option: Option) -> tuple[str, str]:
    if option.value is not None:
        return option.name, option.value
    # `warmup = false` is rendered as `--no-warmup`.
    return (option.positive_name, "false") if option.is_negative else (option.name, "true")


def _checked(key: str, value: str, facts: PresetFacts) -> str:
    fault = _fault(value, facts.ini.cannot_hold)
    if fault:
        raise UsageError(
            f"an ini preset cannot hold the value of {key}, {value!r}: {fault}",
            "rename the file or change the value, or use the formats `args` or `shell`",
        )
    return value


def _fault(value: str, cannot_hold: Sequence[str]) -> str:
    if not value:
        return "it is empty"
    if value != value.strip():
        return "blanks at its ends would be lost"
    for character in cannot_hold:
        if character in value:
            return f"it would end at the {character!r}"
    if "\n" in value or "\r" in value:
        return "it has more than one line"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return ""


def start_line(facts: PresetFacts) -> str:
    """The command that starts a router with the file."""
    settings = [f"{name}={value}" for name, value in facts.env.items()]
    start = [*(["env", *settings] if settings else []), *facts.wrapper, *facts.command]
    return f"{one_line(shlex.join(start))} --models-preset THIS_FILE"
