"""Reads a launch command back into params; the inverse of `argv`, and the start of an import.

Every spelling counts that the program's help or the dialect knows: long, short, with
underscores, `--flag=value`, also spellings that this build no longer has. What is not a
parameter is handed back untouched and in order.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect import Dialect, Spelling, Words
from autofit.runtime.discovery.help_text import HelpText
from autofit.trial.candidate import ParamValue

# Names of variables that hold what nobody else may know.
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|API_KEY|SECRET|PASSWORD)$")
_TRUE = frozenset({"on", "true", "enabled", "1"})


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A launch command, taken apart.

    `program` are the words up to the program, a wrapper's included; `rest` is what is neither
    a parameter, the model, the remote servers nor the address; `env` are the variables that
    are no parameters; `address` are the flags that gave one, and `left_out` those that no
    launch of autofit has, both without their values, which may be secret.
    """

    program: Words
    params: Mapping[str, ParamValue]
    model: str | None = None
    rpc: str = ""
    rest: Words = ()
    env: Mapping[str, str] = field(default_factory=dict)
    address: Words = ()
    left_out: Words = ()


def parse_command(
    argv: Sequence[str],
    dialect: Dialect,
    help_text: HelpText,
    env: Mapping[str, str] | None = None,
) -> ParsedCommand:
    """Take a launch command apart, with the variables that were set for it.

    `argv` begins with the program or its wrapper. Of a flag given twice the last counts, but
    tensor overrides add up, and flags win over variables.

    Raises:
        UsageError: a flag's value is missing.
    """
    return _Reader(dialect, help_text).read(argv, dict(env or {}))


class _Reader:
    """What is known of flags, and what was read so far."""

    def __init__(self, dialect: Dialect, help_text: HelpText) -> None:
        self.dialect = dialect
        self.help = help_text
        launch = dialect.launch
        self.model_flags = self.synonyms(launch.model)
        self.rpc_flags = self.synonyms(launch.rpc) if launch.rpc else ()
        own = (word for word in launch.address if word.startswith("-"))
        self.address_flags = {synonym for word in own for synonym in self.synonyms(word)}
        self.left_out_flags = {s for word in launch.left_out for s in self.synonyms(word)}
        self.flag_of = {
            flag.env: flag.spellings[0] for flag in help_text.flags.values() if flag.env
        }
        # A flag that is followed by a parameter's value, and one that is part of its words.
        self.valued: dict[str, tuple[str, Spelling]] = {}
        self.worded: dict[str, tuple[str, str]] = {}
        for name, parameter in dialect.parameters.items():
            for spelling in parameter.spellings:
                for flag in spelling.flags:
                    for synonym in self.synonyms(flag):
                        if spelling.words is None:
                            self.valued.setdefault(synonym, (name, spelling))
                        else:
                            self.worded.setdefault(synonym, (name, flag))
        self.params: dict[str, ParamValue] = {}
        self.words_given: dict[str, list[tuple[str, str]]] = {}
        self.model: str | None = None
        self.rpc = ""
        self.rest: list[str] = []
        self.address: list[str] = []
        self.left_out: list[str] = []

    def synonyms(self, flag: str) -> Words:
        listed = self.help.flags.get(flag)
        return listed.synonyms(flag) if listed else (flag,)

    def read(self, argv: Sequence[str], env: dict[str, str]) -> ParsedCommand:
        start = self.program_length(argv)
        words = deque(argv[start:])
        while words:
            word = words.popleft()
            flag, has_value, value = self.split(word)
            if not self.wants_value(flag):
                self.take_switch(flag, word, words)
                continue
            if not has_value:
                if not words:
                    raise UsageError(f"{flag}: a value is missing")
                value = words.popleft()
            if not self.take_value(flag, value):
                self.rest += [word] if has_value else [word, value]
        self.settle_words()
        left = self.read_variables(env)
        return ParsedCommand(
            program=tuple(argv[:start]),
            params=self.params,
            model=self.model,
            rpc=self.rpc,
            rest=tuple(self.rest),
            env=left,
            address=tuple(self.address),
            left_out=tuple(self.left_out),
        )

    def take_switch(self, flag: str, word: str, words: deque[str]) -> None:
        """Take a flag without a value."""
        if flag in self.left_out_flags:
            self.left_out.append(flag)
            # Where the help does not tell that it takes a value, none may be kept.
            if flag not in self.help.flags and words and not words[0].startswith("-"):
                words.popleft()
        elif flag in self.worded:
            name, canonical = self.worded[flag]
            self.words_given.setdefault(name, []).append((canonical, word))
        else:
            self.rest.append(word)

    def take_value(self, flag: str, value: str) -> bool:
        """Take a flag's value, and tell whether it is one that is known."""
        if flag in self.model_flags:
            self.model = value
        elif flag in self.rpc_flags:
            self.rpc = value
        elif flag in self.valued:
            self.set(*self.valued[flag], value)
        elif flag in self.address_flags:
            self.address.append(flag)
        elif flag in self.left_out_flags:
            self.left_out.append(flag)
        else:
            return False
        return True

    def program_length(self, argv: Sequence[str]) -> int:
        """How many words come up to the program: a wrapper may have flags of its own."""
        program = self.dialect.program
        for index, word in enumerate(argv):
            if PurePath(word).name.removesuffix(".exe") in program.names:
                return index + 1
        tail = list(program.command[1:])
        for index in range(len(argv)) if tail else ():
            if list(argv[index : index + len(tail)]) == tail:
                return index + len(tail)
        flags = (index for index, word in enumerate(argv) if word.startswith("-"))
        return next(flags, len(argv))

    def split(self, word: str) -> tuple[str, bool, str]:
        """A word's flag, and its value where both are one word."""
        flag, has_value, value = word, False, ""
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flag, has_value = flag.replace("_", "-"), bool(equals)
            if has_value and not self.wants_value(flag):
                return word, False, ""
        return flag, has_value, value

    def wants_value(self, flag: str) -> bool:
        listed = self.help.flags.get(flag)
        if listed is not None:
            return listed.takes_value
        is_ours = flag in self.model_flags or flag in self.rpc_flags or flag in self.address_flags
        return is_ours or (flag in self.valued and flag not in self.worded)

    def set(self, name: str, spelling: Spelling, text: str) -> None:
        """Take a value as a flag or a variable has it."""
        kind = self.dialect.parameters[name].type
        ours = {told: value for value, told in spelling.values.items()}
        text = ours.get(text, text)
        if kind == "list":
            text = text.replace(spelling.join, ",")
            before = self.params.get(name)
            if name == "override_tensor" and before:
                text = f"{before},{text}"
        self.params[name] = _value(kind, text)

    def settle_words(self) -> None:
        """Find the value that each parameter's words say; words without one are no parameter."""
        for name, given in self.words_given.items():
            said = {flag for flag, _ in given}
            value = next(
                (
                    value
                    for spelling in self.dialect.parameters[name].spellings
                    for value, words in (spelling.words or {}).items()
                    if words and set(words) == said
                ),
                None,
            )
            if value is None:
                self.rest += [word for _, word in given]
            elif name not in self.params:
                self.params[name] = _value(self.dialect.parameters[name].type, value)

    def read_variables(self, env: dict[str, str]) -> dict[str, str]:
        """Take what variables say where no flag has said it; returns the others."""
        left = dict(env)
        for variable, value in env.items():
            flag = self.flag_of.get(variable, "")
            if flag in self.address_flags:
                self.address.append(variable)
            elif flag in self.left_out_flags or _SECRET.search(variable):
                self.left_out.append(variable)
            elif flag in self.model_flags:
                self.model = self.model or value
            elif flag in self.rpc_flags:
                self.rpc = self.rpc or value
            else:
                continue
            del left[variable]
        for name, parameter in self.dialect.parameters.items():
            for spelling in parameter.spellings:
                listed = self.help.get(spelling.flag) if spelling.flag else None
                named = spelling.env or (listed.env if listed else None)
                if named in left:
                    text = left.pop(named)
                    if name not in self.params:
                        self.set(name, spelling, text)
        return left


def _value(kind: str, text: str) -> ParamValue:
    """A value of a parameter's type; text such as `auto` stays text."""
    if kind == "boolean":
        return text in _TRUE
    try:
        return int(text) if kind == "integer" else float(text) if kind == "number" else text
    except ValueError:
        return text
