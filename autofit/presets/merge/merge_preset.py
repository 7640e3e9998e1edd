"""Putting a preset into a file that exists, without a change to anything else in it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from autofit.errors import UsageError
from autofit.presets.command_options import MODEL_SOURCES, flag_groups
from autofit.presets.formats import compose, llama_swap
from autofit.presets.formats.yaml_text import EntryFormat, quoted, variables_of
from autofit.presets.merge.merge_ini import merge_section, section_names
from autofit.presets.merge.yaml_entry import Parts, YamlEntry, entry_names, merge_entry
from autofit.presets.preset import Preset

# Settings of a container that stay as the user has them.
_CONTAINER_KEYS = (
    *("image", "ports", "network_mode", "volumes", "deploy", "devices", "ulimits", "cap_add"),
    *("restart", "stop_grace_period"),
)


def merge_presets(
    format_name: str, text: str, presets: Sequence[Preset], label: str
) -> tuple[str, list[str]]:
    """Return the file's text with each preset in it, and notices for the user.

    Raises:
        UsageError: the format holds one model only, or the file cannot be read or changed.
    """
    if format_name not in _MERGERS:
        raise UsageError(
            f"--merge is for files that hold several models, `{format_name}` holds one",
            f"it works with {', '.join(_MERGERS)}",
        )
    merge, _ = _MERGERS[format_name]
    notices: list[str] = []
    for preset in presets:
        text, more = merge(text, preset, label)
        notices += more
    return text, notices


def models_in(format_name: str, text: str, label: str) -> list[str]:
    """Return the names of the models in a file, or nothing for a format that holds a single model.

    Raises:
        UsageError: the file cannot be read.
    """
    if format_name not in _MERGERS:
        return []
    _, models = _MERGERS[format_name]
    return models(text, label)


def _llama_swap_parts(preset: Preset, old: Mapping[str, Any]) -> tuple[Parts, list[str]]:
    """Return the settings for an existing model, and notices for the user.

    Keys, options and variables that a tune does not choose stay.
    """
    try:
        words = llama_swap.command_words(str(old.get("cmd") or ""))
    except ValueError:  # llama-swap could not split it either
        words = []
    kept, notices = _kept_options(words, preset, lambda word: "${" in word)
    parts = llama_swap.entry_parts(preset, kept)
    if llama_swap.PORT_MACRO in str(old.get("proxy") or ""):
        del parts["proxy"]
    others = [
        f"  - {quoted(text)}"
        for text in map(str, old.get("env") or ())
        if _is_kept_variable(text.partition("=")[0], preset)
    ]
    parts["env"] = _with_others("env", others, parts)
    return parts, notices


def _compose_parts(preset: Preset, old: Mapping[str, Any]) -> tuple[Parts, list[str]]:
    """Return the settings for an existing service, and notices for the user.

    Its container stays as it is, and so do options and variables that a tune does not choose.
    """
    given = old.get("command")
    try:
        words = shlex.split(given) if isinstance(given, str) else list(given or ())
    except ValueError:  # compose could not split it either
        words = []
    kept, notices = _kept_options(words, preset, lambda word: "$" in word.replace("$$", ""))
    parts = compose.entry_parts(preset, [word.replace("$$", "$") for word in kept])
    removed = [key for key in _CONTAINER_KEYS if key in old]
    if "network_mode" in old or "ports" in old:
        removed += ["network_mode", "ports"]
    for key in removed:
        parts.pop(key, None)
    others = [
        f"  {quoted(name)}:" + ("" if value is None else f" {quoted(value)}")
        for name, value in variables_of(old.get("environment")).items()
        if _is_kept_variable(name, preset)
    ]
    parts["environment"] = _with_others("environment", others, parts)
    files = map(str, compose.used_files(preset))
    missing = [file for file in files if file not in str(old.get("volumes"))]
    if "volumes" in old and missing:
        notices.append(
            f"the volumes are not changed; check that they contain {', '.join(missing)}"
        )
    return parts, notices


def _kept_options(
    words: Sequence[str], preset: Preset, is_expanded: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Return the options of an older command that stay, and notices for the user.

    Options that no tune chooses stay, such as sampling. These options are removed: those that the
    preset has too, those that a tune may choose, unknown flags, and options with a variable or
    macro in their value.
    """

    def spellings(flag: str) -> tuple[str, ...]:
        known = preset.help.get(flag) if preset.help is not None else None
        return known.spellings if known is not None else (flag,)

    flags = (a for a in (*preset.arguments, *preset.address) if a.startswith("-"))
    own = {spelling for flag in flags for spelling in spellings(flag)}
    kept: list[str] = []
    removed: list[str] = []
    for group in flag_groups(words):
        flag = preset.help.get(group[0]) if preset.help is not None else None
        names = spellings(group[0])
        if not group[0].startswith("-") or not own.isdisjoint(names):
            continue
        is_complete = flag is not None and len(group) == (2 if flag.takes_value else 1)
        is_replaced = preset.is_tunable(names) or not MODEL_SOURCES.isdisjoint(names)
        stays = is_complete and not is_replaced and not any(map(is_expanded, group))
        (kept if stays else removed).extend(group)
    notices = []
    if kept:
        notices.append(f"kept from the older command: {' '.join(kept)}")
    if removed:
        notices.append(f"removed from the older command: {' '.join(removed)}")
    return kept, notices


def _is_kept_variable(name: str, preset: Preset) -> bool:
    return name not in preset.env and not preset.is_tunable((name,))


def _with_others(key: str, others: Sequence[str], parts: Parts) -> list[str]:
    """Return the lines of a list of variables with others first, or no lines for an empty list."""
    own = list(parts.get(key, ()))[1:]
    return [f"{key}:", *others, *own] if others or own else []


def _merge_yaml(
    entries: EntryFormat,
    entry_parts: Callable[[Preset, Mapping[str, Any]], tuple[Parts, list[str]]],
    text: str,
    preset: Preset,
    label: str,
) -> tuple[str, list[str]]:
    notices: list[str] = []

    def parts(old: Mapping[str, Any]) -> Parts:
        new, more = entry_parts(preset, old)
        notices.extend(more)
        return new

    entry = YamlEntry(
        top=entries.top,
        name=entries.name(preset),
        key=entries.key(preset),
        comments=entries.comments(preset),
        parts=parts,
    )
    return merge_entry(text, entry, label), notices


_Merge = Callable[[str, Preset, str], tuple[str, list[str]]]
_MERGERS: Mapping[str, tuple[_Merge, Callable[[str, str], list[str]]]] = {
    "ini": (merge_section, section_names),
    "llama-swap": (
        partial(_merge_yaml, llama_swap.ENTRIES, _llama_swap_parts),
        partial(entry_names, llama_swap.TOP_KEY),
    ),
    "compose": (
        partial(_merge_yaml, compose.ENTRIES, _compose_parts),
        partial(entry_names, compose.TOP_KEY),
    ),
}
