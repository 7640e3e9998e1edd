"""llama-server's router presets: `llama-server --models-preset FILE`.

Keys have no dashes, values no quotes, and a value ends at the first `;` or `#`. One unknown key
makes the router refuse the whole file. The router applies options in an order of its own
(https://github.com/ggml-org/llama.cpp, common/preset.cpp).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autofit.errors import UsageError
from autofit.presets.command_options import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE_TENSOR,
    Option,
)
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading
from autofit.presets.server_entry import ServerEntry
from autofit.runtime.discovery.help_text import HelpText
from autofit.text_format import one_line

# The router applies options in byte order of their first spelling: -cmoe, -ncffn, -ncmoe, -ot.
_APPLIED_OVERRIDES = (CPU_MOE, N_CPU_FFN, N_CPU_MOE, OVERRIDE_TENSOR)
_COMMENT = "; "
SECTION = re.compile(r"\[[ \t]*(?P<name>[^\]]+)\][ \t]*(?:[;#].*)?")
# A value ends at the first `;` or `#`, even within quotes.
SETTING = re.compile(
    r"(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)(?P<equals>[ \t]*=[ \t]*)"
    r"(?P<value>(?:[^;# \t]++|[ \t]++(?![;#]|$))*+)(?P<rest>(?:[ \t]*+[;#].*)?)[ \t]*"
)
# The model that keys before the first section belong to.
_FIRST_SECTION = "default"
# The section with the defaults of all models.
EVERY_MODEL = "*"
# Keys that say where a section's model comes from.
_MODEL_KEYS = frozenset(
    ("model", "m", "LLAMA_ARG_MODEL", "hf", "hfr", "hf-repo", "LLAMA_ARG_HF_REPO", "mu",
     "model-url", "LLAMA_ARG_MODEL_URL", "dr", "docker-repo", "LLAMA_ARG_DOCKER_REPO")
)  # fmt: skip
# Keys of a section that only the router uses.
_SECTION_KEYS = frozenset({"version", "load-on-startup", "stop-timeout", "dedup-cache-models"})
# Options of the router itself, which it passes to no model.
_ROUTER_OPTION = re.compile(
    r"(?:no-)?models-(?:dir|max|preset|autoload)|LLAMA_ARG_(?:NO_)?MODELS_\w+"
)


def write(presets: Sequence[Preset]) -> str:
    """Return an INI file with a section for each preset; [*] has the settings that all share."""
    lines = []
    if not any(preset.env or preset.wrapper for preset in presets):
        lines.append(f"{_COMMENT}start with: {_router_command(presets[0])}")
    if len({(*preset.env.items(), preset.wrapper) for preset in presets}) > 1:
        lines.append(
            f"{_COMMENT}NOTE: these models need different variables or wrappers, but one router "
            "gives all models the same"
        )
    lines += ["version = 1", ""]
    sections = [section_settings(preset) for preset in presets]
    shared = _shared_settings(sections)
    if shared:
        lines += [f"[{EVERY_MODEL}]", *_setting_lines(shared), ""]
    for preset, section in zip(presets, sections, strict=True):
        own = {key: value for key, value in section.items() if key not in shared}
        lines += [*comments(preset), f"[{section_name(preset)}]", *_setting_lines(own), ""]
    return "\n".join(lines[:-1]) + "\n"


def _setting_lines(settings: Mapping[str, str]) -> list[str]:
    return [f"{key} = {value}" for key, value in settings.items()]


def _shared_settings(sections: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *others = sections
    return {
        key: value
        for key, value in first.items()
        if others and key != "model" and all(other.get(key) == value for other in others)
    }


def comments(preset: Preset) -> list[str]:
    """Return the heading of a section as comments."""
    return [_COMMENT + line for line in heading(preset, notices(preset))]


def notices(preset: Preset) -> list[str]:
    """Return notices on how the router must be started, if the presets require anything."""
    if not preset.env and not preset.wrapper:
        return []
    reason = "its models inherit the variables and the wrapper"
    return [f"start the router exactly as follows, because {reason}: {_router_command(preset)}"]


def _router_command(preset: Preset) -> str:
    settings = [f"{name}={value}" for name, value in preset.env.items()]
    start = [*(["env", *settings] if settings else []), *preset.wrapper, *preset.command]
    return f"{one_line(shlex.join(start))} --models-preset THIS_FILE"


def section_settings(preset: Preset) -> dict[str, str]:
    """Return the keys and values of a preset's section, the model first.

    Raises:
        UsageError: an argument or value cannot be written into such a file.
    """
    settings = {"model": str(preset.model_path)}
    for option in section_options(preset):
        if option.value is not None:
            settings[option.name] = option.value
        elif option.is_negative:  # the router turns `warmup = false` into `--no-warmup`
            settings[option.positive_name] = "false"
        else:
            settings[option.name] = "true"
    for key, value in settings.items():
        fault = _value_fault(value, preset.rules.ini.cannot_hold)
        if fault:
            raise UsageError(
                f"an ini preset cannot hold the value of {key}, {value!r}: {fault}",
                "rename the file or change the value, or use the formats `args` or `shell`",
            )
    return settings


def _value_fault(value: str, cannot_hold: Sequence[str]) -> str:
    if not value:
        return "it is empty"
    if value != value.strip():
        return "the router removes blanks at its ends"
    for character in cannot_hold:
        if character in value:
            return f"the router would cut it at {character!r}"
    if "\n" in value or "\r" in value:
        return "it has more than one line"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return ""


def section_options(preset: Preset) -> tuple[Option, ...]:
    """Return the options of a preset's section except its model, each flag once.

    Raises:
        UsageError: the runtime's help is not known, or does not list an argument.
    """
    router_flags = {f"--{key}" for key in (*preset.rules.ini.reserved, "model", "alias")}
    options = preset.options(_APPLIED_OVERRIDES)
    return tuple(o for o in options if router_flags.isdisjoint(o.flag.spellings))


def section_name(preset: Preset) -> str:
    """Return a section name that the router takes and shows unchanged.

    The router changes the case of text after a `:`, and `[*]` has the defaults of all models.
    """
    plain = " ".join(one_line(preset.model_name).split())
    name = re.sub(r"[\[\]:\\]+", "-", plain).strip(" -")
    return "model" if name in ("", EVERY_MODEL, "default") else name


def refused_keys(keys: Iterable[str], help_text: HelpText) -> dict[str, str]:
    """Return the keys for which the router refuses a file, with the right key or "" for each.

    Unlike a command line, a section must have the dashes of a long flag, not underscores.
    """
    if not help_text.flags:
        return {}
    variables = {flag.env for flag in help_text.flags.values() if flag.env}

    def is_known(key: str) -> bool:
        return f"--{key}" in help_text or f"-{key}" in help_text or key in variables

    right = {key: key.replace("_", "-") for key in keys if not is_known(key)}
    return {key: other if is_known(other) else "" for key, other in right.items()}


def _recognizes(file: PresetFile) -> bool:
    lines = file.text.split("\n")
    sections = {found["name"] for line in lines if (found := SECTION.fullmatch(line))}
    is_ini = file.path.suffix == ".ini" or bool(sections)
    return is_ini and file.data is None and sections.isdisjoint({"Service", "Container"})


def read(file: PresetFile) -> list[ServerEntry]:
    """Return a server for each section except [*], as the router reads the file.

    Raises:
        ValueError: the router would refuse the file.
    """
    if file.has_byte_order_mark:
        raise ValueError(
            "line 1: the router refuses a byte order mark; save the file as UTF-8 without one"
        )
    sections: dict[str, _Section] = {}
    section = sections[_FIRST_SECTION] = _Section()
    for number, line in enumerate(re.split(r"\r\n|\n|\r", file.text), start=1):
        if not line.strip() or line.lstrip().startswith((";", "#")):
            continue
        header, setting = SECTION.fullmatch(line), SETTING.fullmatch(line)
        if header:
            name = header["name"]
            is_repeated = bool(name in sections and sections[name].settings)
            section = sections[name] = _Section(is_repeated=is_repeated)
        elif setting:
            section.add(setting["key"], setting["value"], setting["rest"])
        else:
            raise ValueError(f"line {number}: {_line_fault(line)}")
    keys = tuple(dict.fromkeys(key for one in sections.values() for key in one.settings))
    defaults = sections.pop(EVERY_MODEL, _Section())
    return [
        replace(_server(name, section, defaults, sections), router_keys=keys)
        for name, section in sections.items()
        if name != _FIRST_SECTION or not _MODEL_KEYS.isdisjoint(section.settings)
    ]


@dataclass(slots=True)
class _Section:
    """The settings of a section, and notices where the router reads them in an unexpected way."""

    settings: dict[str, str] = field(default_factory=dict)
    is_repeated: bool = False
    notices: list[str] = field(default_factory=list)

    def add(self, key: str, value: str, rest: str) -> None:
        """Set a key; `rest` is the text that the router drops, from the blanks before it on."""
        self.settings[key] = value
        if value and rest and not rest[0].isspace():
            self.notices.append(f"{key} is {value}: a value ends at `;` or `#`, so {rest} is lost")
        if re.fullmatch(r"([\"']).*\1", value):
            self.notices.append(f"the router keeps the quotes of {key} = {value}: remove them")


def _line_fault(line: str) -> str:
    """Return why the router refuses a file with this line."""
    key, equals, _ = line.partition("=")
    name = key.strip()
    if not equals or name.startswith("["):
        return f"'{line.strip()}' is neither [section] nor key = value"
    if key[:1] in " \t":
        return f"the router refuses blanks before the key '{name}'"
    if name.startswith("-"):
        return f"'{name}': keys of a router preset have no dashes before them"
    return f"'{name}' cannot be a key of a router preset"


def _server(
    name: str, section: _Section, defaults: _Section, sections: Mapping[str, _Section]
) -> ServerEntry:
    notices = [*defaults.notices, *section.notices]
    if section.is_repeated:
        notices.append(f"[{name}] is in the file twice: the router uses only the last one")
    lone = [key for key in sections[_FIRST_SECTION].settings if key != "version"]
    if lone and name != _FIRST_SECTION:
        notices.append(
            f"{', '.join(lone)} before the first section belongs to a model of its own, called "
            f"{_FIRST_SECTION}; defaults of all models are in [{EVERY_MODEL}]"
        )
    own = section.settings
    # Of two spellings of one option, the last one in the order of the alphabet counts.
    settings = [
        *((key, value) for key, value in sorted(defaults.settings.items()) if key not in own),
        *sorted(own.items()),
    ]
    router_options = [key for key, _ in settings if _ROUTER_OPTION.fullmatch(key)]
    notices += [f"{key} is left out: it is an option of the router" for key in router_options]
    if _MODEL_KEYS.isdisjoint(key for key, _ in settings):
        notices.append(f"[{name}] names no model, so the router has nothing to load for it")
    left_out = {*_SECTION_KEYS, *router_options}
    kept = tuple((key, value) for key, value in settings if key not in left_out)
    return ServerEntry(name, options=kept, notices=tuple(notices))


FORMAT = PresetFormat(
    suffix=".ini",
    write=write,
    holds_several=True,
    recognizes=_recognizes,
    read=read,
    notices=notices,
    entry_name=section_name,
    names_servers=True,
)
