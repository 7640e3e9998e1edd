"""A preset put into a file that is there, which keeps whatever else it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.output.preset import compose, llama_swap, merge_ini, merge_yaml
from autofit.output.preset.facts import PresetFacts
from autofit.output.preset.option import flag_groups


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


def _into_llama_swap(text: str, facts: PresetFacts, label: str) -> tuple[str, list[str]]:
    notices: list[str] = []

    def parts(old: Mapping[str, Any]) -> Mapping[str, list[str]]:
        try:
            words = llama_swap.command_words(str(old.get("cmd") or ""))
        except ValueError:
            words = []
        own = {*facts.arguments, *facts.address}
        gone = [" ".join(group) for group in flag_groups(words)[1:] if group[0] not in own]
        if gone:
            notices.append(f"gone from the older cmd: {', '.join(gone)}")
        return llama_swap.merged_entry(facts, old)

    entry = merge_yaml.Entry(
        top=llama_swap.MODELS,
        name=llama_swap.entry_name(facts),
        key=llama_swap.entry_key(facts),
        comments=llama_swap.comments(facts),
        parts=parts,
    )
    return merge_yaml.merge(text, entry, label), notices


def _into_compose(text: str, facts: PresetFacts, label: str) -> tuple[str, list[str]]:
    notices: list[str] = []

    def parts(old: Mapping[str, Any]) -> Mapping[str, list[str]]:
        missing = compose.unmounted(facts, old)
        if missing:
            notices.append(
                f"the volumes stay as they are; are these mounted: {', '.join(missing)}"
            )
        return compose.merged_entry(facts, old)

    entry = merge_yaml.Entry(
        top=compose.SERVICES,
        name=compose.entry_name(facts),
        key=compose.entry_key(facts),
        comments=compose.comments(facts),
        parts=parts,
    )
    return merge_yaml.merge(text, entry, label), notices


_MERGERS: Mapping[str, Callable[[str, PresetFacts, str], tuple[str, list[str]]]] = {
    "ini": merge_ini.merge,
    "llama-swap": _into_llama_swap,
    "compose": _into_compose,
}
