"""A preset put into a file that is there, which keeps whatever else it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.formats import compose, llama_swap
from autofit.presets.merge import merge_ini, merge_yaml


def merge_presets(
    format_name: str, text: str, presets: Sequence[PresetFacts], label: str
) -> tuple[str, list[str]]:
    """The file's text with each preset in it, and what a user should know of the change.

    Raises:
        UsageError: the format holds one model only, or the file cannot be read or changed.
    """
    if format_name not in _MERGERS:
        raise UsageError(
            f"--merge is for files that hold several models, `{format_name}` holds one",
            f"it works with {', '.join(_MERGERS)}",
        )
    notices: list[str] = []
    for facts in presets:
        text, told = _MERGERS[format_name](text, facts, label)
        notices += told
    return text, notices


def models_in(format_name: str, text: str, label: str) -> list[str]:
    """The models in a file of a format, empty where the format holds one only.

    Raises:
        UsageError: the file cannot be read.
    """
    if format_name == "ini":
        return merge_ini.models(text, label)
    tops = {"llama-swap": llama_swap.MODELS, "compose": compose.SERVICES}
    return merge_yaml.entries(text, tops[format_name], label) if format_name in tops else []


def _into_yaml(
    kind: ModuleType, top: str, text: str, facts: PresetFacts, label: str
) -> tuple[str, list[str]]:
    notices: list[str] = []

    def parts(old: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        new, told = kind.merged_entry(facts, old)
        notices.extend(told)
        return dict(new)

    entry = merge_yaml.Entry(
        top=top,
        name=kind.entry_name(facts),
        key=kind.entry_key(facts),
        comments=kind.comments(facts),
        parts=parts,
    )
    return merge_yaml.merge(text, entry, label), notices


_MERGERS: Mapping[str, Callable[[str, PresetFacts, str], tuple[str, list[str]]]] = {
    "ini": merge_ini.merge,
    "llama-swap": partial(_into_yaml, llama_swap, llama_swap.MODELS),
    "compose": partial(_into_yaml, compose, compose.SERVICES),
}
