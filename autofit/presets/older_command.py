"""Of a command that a preset takes the place of: which options stay, and which go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofit.presets.facts import PresetFacts
from autofit.presets.option import flag_groups
from autofit.runtime.discovery.help_text import Flag

# Where a model comes from; a preset's is a file.
MODEL_SOURCES = frozenset({"--hf-repo", "--hf-file", "--model-url", "--docker-repo"})


@dataclass(frozen=True, slots=True)
class ExistingOptions:
    """What an older command says that the preset does not.

    `kept` are options that no tune decides, such as sampling; `gone` are all others.
    """

    kept: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def notices(self) -> list[str]:
        """The same in words."""
        told = (("kept from", self.kept), ("gone from", self.gone))
        return [f"{what} the older command: {' '.join(words)}" for what, words in told if words]


def older_words(
    words: Sequence[str], facts: PresetFacts, is_open: Callable[[str], bool]
) -> ExistingOptions:
    """Sort the options of an older command; an open word is filled in when it is started."""
    own = {word for word in (*facts.arguments, *facts.address) if word.startswith("-")}
    said = {spelling for word in own for spelling in _spellings(word, _flag(word, facts))}
    kept: list[str] = []
    gone: list[str] = []
    for group in flag_groups(words):
        flag = _flag(group[0], facts)
        spellings = _spellings(group[0], flag)
        if not group[0].startswith("-") or not said.isdisjoint(spellings):
            continue
        is_whole = flag is not None and len(group) == (2 if flag.takes_value else 1)
        is_ours = facts.decides(spellings) or not MODEL_SOURCES.isdisjoint(spellings)
        stays = is_whole and not is_ours and not any(map(is_open, group))
        (kept if stays else gone).extend(group)
    return ExistingOptions(tuple(kept), tuple(gone))


def _flag(word: str, facts: PresetFacts) -> Flag | None:
    return facts.help.get(word) if facts.help is not None else None


def _spellings(word: str, flag: Flag | None) -> tuple[str, ...]:
    return flag.spellings if flag is not None else (word,)
