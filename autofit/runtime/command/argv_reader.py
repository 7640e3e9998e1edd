"""The parser of a launch command: it converts words into parameters.

It accepts every spelling that the program's help or the dialect lists: long, short, with
underscores, `--flag=value`, and spellings that this build no longer has. Words that are not
parameters are returned unchanged and in order.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect import Dialect, Spelling
from autofit.runtime.discovery.help_text import HelpText
from autofit.trial.candidate import ParamValue
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS

_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|API_KEY|SECRET|PASSWORD)$")
# What llama.cpp (common/arg.cpp) takes for on and off, in lower case alone.
TRUE_WORDS = frozenset({"on", "true", "enabled", "1"})
FALSE_WORDS = frozenset({"off", "false", "disabled", "0"})
# Other words that llama.cpp (common/arg.cpp) accepts for the values of a flag `on|off|auto`.
_SWITCH_VALUES = {
    **dict.fromkeys(TRUE_WORDS, "on"),
    **dict.fromkeys(FALSE_WORDS, "off"),
    "-1": "auto",
}
# Given several times, as flags or in a variable, these add up in llama.cpp (common/arg.cpp):
# texts are joined, and of two numbers of layers the larger one decides. A variable comes first.
_JOINED = frozenset({"override_tensor"})
# Lists that llama.cpp splits at more than one character.
_SEPARATORS = {"tensor_split": "[,/]"}
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """The parts of a launch command.

    `program` are the words up to the program, with those of a wrapper. `rest` are the words and
    `env` the variables that are not parameters. `address` and `left_out` are flags and variables
    without their values, which may be secret: those that set an address, and those that autofit
    removes from launches.
    """

    program: tuple[str, ...]
    params: Mapping[str, ParamValue]
    model: str | None = None
    rpc: str = ""
    rest: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    address: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def parse_command(
    argv: Sequence[str],
    dialect: Dialect,
    help_text: HelpText,
    env: Mapping[str, str] | None = None,
    *,
    allows_bare: bool = False,
) -> ParsedCommand:
    """Parse a launch command and the variables that were set for it.

    `argv` begins with the program or its wrapper. If a flag is repeated, the last value counts,
    and flags take precedence over variables, except where llama.cpp adds the values up: tensor
    overrides, numbers of layers in system RAM, and remote servers.

    With `allows_bare`, a flag such as `--flash-attn` without a value means `on`. Older builds take
    no value, and the build is not known.

    Raises:
        UsageError: a flag's value is missing.
    """
    return _Parser(dialect, help_text, allows_bare=allows_bare).parse(argv, env or {})


_Role = Literal["model", "rpc", "address", "left_out"]


class _Parser:
    """The known flags, and the parts that were parsed so far."""

    def __init__(self, dialect: Dialect, help_text: HelpText, *, allows_bare: bool) -> None:
        self.allows_bare = allows_bare
        self.dialect = dialect
        self.help = help_text
        launch = dialect.launch
        groups: tuple[tuple[_Role, Sequence[str]], ...] = (
            ("left_out", launch.left_out),
            ("address", [word for word in launch.address if word.startswith("-")]),
            ("rpc", (launch.rpc,) if launch.rpc else ()),
            ("model", (launch.model,)),
        )
        self.roles: dict[str, _Role] = {
            synonym: role
            for role, flags in groups
            for flag in flags
            for synonym in help_text.synonyms(flag)
        }
        self.flag_of_variable = {
            flag.env: flag.spellings[0] for flag in help_text.flags.values() if flag.env
        }
        # Flags that are followed by a parameter's value, and flags whose presence is the value.
        self.value_flags: dict[str, tuple[str, Spelling]] = {}
        self.switches: dict[str, tuple[str, str]] = {}
        for name, parameter in dialect.parameters.items():
            for spelling in parameter.spellings:
                for flag in spelling.flags:
                    for synonym in help_text.synonyms(flag):
                        if spelling.words is None:
                            self.value_flags.setdefault(synonym, (name, spelling))
                        else:
                            self.switches.setdefault(synonym, (name, flag))
        self.params: dict[str, ParamValue] = {}
        self.given_switches: dict[str, list[tuple[str, str]]] = {}
        self.model: str | None = None
        self.rpc = ""
        self.rest: list[str] = []
        self.address: list[str] = []
        self.left_out: list[str] = []

    def parse(self, argv: Sequence[str], env: Mapping[str, str]) -> ParsedCommand:
        start = self.count_program_words(argv)
        words = deque(argv[start:])
        while words:
            word = words.popleft()
            flag, value = self.split(word)
            if not self.takes_value(flag):
                self.add_switch(flag, word, words)
                continue
            given = [word]
            if value is None and self.is_bare(flag, words):
                value = "on"
            elif value is None:
                value = words.popleft()
                given.append(value)
            if not self.add_value(flag, value):
                self.rest += given
        self.convert_switches()
        unused_env = self.add_variables(env)
        return ParsedCommand(
            program=tuple(argv[:start]),
            params=self.params,
            model=self.model,
            rpc=self.rpc,
            rest=tuple(self.rest),
            env=unused_env,
            address=tuple(self.address),
            left_out=tuple(self.left_out),
        )

    def count_program_words(self, argv: Sequence[str]) -> int:
        """Return the number of words up to the program; a wrapper may have its own flags."""
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

    def split(self, word: str) -> tuple[str, str | None]:
        """Return a word's flag, and its value if the word contains both."""
        if not word.startswith("--"):
            return word, None
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if equals and not self.takes_value(flag):
            return word, None
        return flag, value if equals else None

    def takes_value(self, flag: str) -> bool:
        listed = self.help.flags.get(flag)
        if listed is not None:
            return listed.takes_value
        if self.roles.get(flag) in ("model", "rpc", "address"):
            return True
        return flag in self.value_flags and flag not in self.switches

    def is_bare(self, flag: str, words: Sequence[str]) -> bool:
        """Return whether a flag without a value means `on`, as in old builds without `on|off`.

        Raises:
            UsageError: the value is missing.
        """
        listed = self.help.flags.get(flag)
        choices = listed.allowed if listed else ()
        if words and not ("on" in choices and _FLAG.match(words[0])):
            return False
        if "on" in choices and self.allows_bare:
            return True
        hint = f"give one that this build accepts: {', '.join(choices)}" if choices else ""
        raise UsageError(f"{flag}: a value is missing", hint)

    def add_switch(self, flag: str, word: str, words: deque[str]) -> None:
        if self.roles.get(flag) == "left_out":
            self.left_out.append(flag)
            # The help does not show whether a value follows: a secret must not be kept.
            if flag not in self.help.flags and words and not words[0].startswith("-"):
                words.popleft()
        elif flag in self.switches:
            name, canonical = self.switches[flag]
            self.given_switches.setdefault(name, []).append((canonical, word))
        else:
            self.rest.append(word)

    def add_value(self, flag: str, value: str) -> bool:
        """Store a flag's value; return False for an unknown flag."""
        role = self.roles.get(flag)
        if role == "model":
            self.model = value
        elif role == "rpc":
            self.rpc = _join(self.rpc, value)
        elif flag in self.value_flags:
            self.set_param(*self.value_flags[flag], value)
        elif role == "address":
            self.address.append(flag)
        elif role == "left_out":
            self.left_out.append(flag)
        else:
            return False
        return True

    def set_param(self, name: str, spelling: Spelling, text: str) -> None:
        """Set a parameter to the value of a flag or variable."""
        kind = self.dialect.parameters[name].type
        names = {written: value for value, written in spelling.values.items()}
        text = names.get(text, text)
        if "on" in self.find_choices(name, spelling):
            text = _SWITCH_VALUES.get(text, text)
        if kind == "list":
            text = re.sub(_SEPARATORS.get(name, re.escape(spelling.join)), ",", text)
        self.params[name] = self.combine(name, self.params.get(name), _convert(kind, text))

    @staticmethod
    def combine(name: str, before: ParamValue | None, after: ParamValue) -> ParamValue:
        """Return the value of a parameter that is given twice."""
        if before is None:
            return after
        if name in _JOINED:
            return _join(str(before), str(after))
        if name in HOST_LAYER_PARAMS and isinstance(before, int) and isinstance(after, int):
            return max(before, after)
        return after

    def find_choices(self, name: str, spelling: Spelling) -> set[str]:
        """Return the values that the help or another spelling of a parameter lists."""
        listed = self.help.flags.get(spelling.flag) if spelling.flag else None
        spellings = self.dialect.parameters[name].spellings
        words = {value for other in spellings for value in other.words or {}}
        return words | set(listed.allowed if listed else ())

    def convert_switches(self) -> None:
        """Set each parameter whose value a given switch spells; keep the other switches."""
        for name, given in self.given_switches.items():
            parameter = self.dialect.parameters[name]
            flags = {flag for flag, _ in given}
            matching = (
                value
                for spelling in parameter.spellings
                for value, words in (spelling.words or {}).items()
                if words and set(words) == flags
            )
            value = next(matching, None)
            if value is None:
                self.rest += [word for _, word in given]
            elif name not in self.params:
                self.params[name] = _convert(parameter.type, value)

    def add_variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Store the variables that no flag overrides; return those that are not parameters."""
        unused = dict(env)
        for variable, value in env.items():
            role = self.roles.get(self.flag_of_variable.get(variable, ""))
            if role == "address":
                self.address.append(variable)
            elif role == "left_out" or _SECRET_VARIABLE.search(variable):
                self.left_out.append(variable)
            elif role == "model":
                self.model = self.model or value
            elif role == "rpc":
                self.rpc = _join(value, self.rpc)
            else:
                continue
            del unused[variable]
        for name, parameter in self.dialect.parameters.items():
            for spelling in parameter.spellings:
                if spelling.words is None:
                    self.add_value_variable(name, spelling, unused)
                elif parameter.type == "boolean":
                    self.add_switch_variables(name, spelling, unused)
        return unused

    def add_value_variable(self, name: str, spelling: Spelling, unused: dict[str, str]) -> None:
        """Set a parameter to the value of its environment variable, unless a flag sets it."""
        listed = self.help.get(spelling.flag) if spelling.flag else None
        variable = spelling.env or (listed.env if listed else None)
        if variable in unused:
            text, given = unused.pop(variable), self.params.pop(name, None)
            self.set_param(name, spelling, text)
            if given is not None:
                self.params[name] = self.combine(name, self.params[name], given)

    def add_switch_variables(self, name: str, spelling: Spelling, unused: dict[str, str]) -> None:
        """Set a parameter that flags without a value spell to the value of its variable."""
        for flag in spelling.flags:
            listed = self.help.get(flag)
            variable = listed.env if listed else None
            if variable is None:
                continue
            # With any value, the negative form switches off.
            off = unused.pop(variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1), None)
            text = unused.pop(variable, None)
            if text is not None or off is not None:
                self.params.setdefault(name, off is None and text in TRUE_WORDS)


def _join(*lists: str) -> str:
    """Join comma-separated lists, each item once."""
    items = (item for text in lists if text for item in text.split(","))
    return ",".join(dict.fromkeys(items))


def _convert(kind: str, text: str) -> ParamValue:
    """Convert to a parameter's type; a text such as `auto` stays text."""
    if kind == "boolean":
        return text in TRUE_WORDS
    try:
        return int(text) if kind == "integer" else float(text) if kind == "number" else text
    except ValueError:
        return text
