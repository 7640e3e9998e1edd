"""A systemd unit, for the system's manager and for a user's (`systemctl --user`) alike.

A line's value is split at blanks and quotes as in C; `%` begins a specifier everywhere, `$` a
variable in `ExecStart` (systemd.exec(5), systemd.service(5), systemd.syntax(7)).
"""

from __future__ import annotations

import re
import shutil

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.heading import heading
from autofit.presets.option import flag_groups
from autofit.text_format import one_line

# A model of hundreds of GB is read for minutes; a server that cannot start fails in seconds.
_RESTART_S = 5
_MOST_RESTARTS, _WITHIN_S = 5, 1800
_STOP_S = 30
_NETWORK = ("Wants=network-online.target", "After=network-online.target")
_PLAIN = re.compile(r"[\w./:=@+,^*(){}|-]+", re.ASCII)
_LOCKING = frozenset({"--mlock", "mlock", "mmap+mlock"})


def write(facts: PresetFacts) -> str:
    """The preset as a unit file.

    Raises:
        UsageError: the program's path or a word has no place in one.
    """
    lines = [f"# {line}" for line in heading(facts)]
    lines += [
        "# put it into ~/.config/systemd/user/, or /etc/systemd/system/ with a User= of yours",
        "",
        "[Unit]",
        f"Description={_description(facts)}",
        *(_NETWORK if "--rpc" in facts.arguments else ()),
        f"StartLimitIntervalSec={_WITHIN_S}",
        f"StartLimitBurst={_MOST_RESTARTS}",
        "",
        "[Service]",
        "Type=exec",
    ]
    lines += [f"Environment={_quoted(f'{name}={v}')}" for name, v in facts.env.items()]
    lines += [
        f"ExecStart={_command(facts)}",
        "Restart=on-failure",
        f"RestartSec={_RESTART_S}",
        f"TimeoutStopSec={_STOP_S}",
        "NoNewPrivileges=yes",
    ]
    if locks_memory(facts):
        lines.append("LimitMEMLOCK=infinity")
    lines += ["", "[Install]", "WantedBy=default.target"]
    return "\n".join(lines) + "\n"


def _description(facts: PresetFacts) -> str:
    # A backslash at its end would join the next line to it.
    name = one_line(facts.model_name).rstrip("\\ ")
    return f"llama.cpp server for {name}".replace("%", "%%")


def locks_memory(facts: PresetFacts) -> bool:
    """Whether the server keeps its weights in memory by force, for which there is a limit."""
    words = {*facts.arguments, *facts.env.values(), *map(str, facts.params.values())}
    return bool(_LOCKING & words) or "LLAMA_ARG_MLOCK" in facts.env


def _command(facts: PresetFacts) -> str:
    program, *rest = (*facts.wrapper, *facts.command)
    # Older managers want an absolute path, newer ones look in folders of their own.
    found = program if "/" in program else shutil.which(program) or program
    if "$" in found:
        raise UsageError(
            f"a systemd unit cannot start {found!r}: the path holds a `$`",
            "use the formats `args` or `shell`",
        )
    start = [_quoted(found), *(_argument(word) for word in rest)]
    groups = [" ".join(map(_argument, group)) for group in flag_groups(facts.served_arguments)]
    return " \\\n  ".join([" ".join(start), *groups])


def _argument(word: str) -> str:
    return _quoted(word).replace("$", "$$")


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a systemd unit cannot hold {word!r}: it is not valid Unicode",
            "rename the file, or use the formats `args` or `shell`",
        ) from error
    return '"' + "".join(map(_escaped, word.replace("%", "%%"))) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else _hexadecimal(character)


def _hexadecimal(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
