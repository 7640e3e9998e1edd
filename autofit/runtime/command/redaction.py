"""Commands and variables without secrets, before they are stored or shown.

A value is kept if a runtime needs it and it cannot be a secret: numbers, switches, paths, values
of flags that the runtime's help lists, variables of its libraries. All other values are hidden,
such as those of unknown flags and variables. The value of a name such as `--auth-token` or
`MY_PASSWD` is always hidden. Of an address, only protocol, host and path are kept.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from autofit.runtime.discovery.help_text import HelpText
from autofit.trial.candidate import LaunchPlan

HIDDEN = "***"
# Shorter values are not searched in logs: they are part of other words.
_SHORTEST_SEARCHED = 6

_CREDENTIAL = re.compile(
    r"(?<![a-z])(?:api_?)?(?:key|token|secret|pass|passw|passwd|password|passphrase|passcode|pwd|"
    r"creds?|credentials?|auth|authorization|authentication|bearer|cookie|hft)(?![a-z])",
    re.IGNORECASE,
)
_NAMES_FILE = re.compile(r"(?<![a-z])(?:file|path|dir|fname)\Z", re.IGNORECASE)
# Numbers with units, ranges and lists of them, and the words of switches.
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[kmgt]i?b?|[smhx%])?|", re.IGNORECASE)
_SWITCH = re.compile(
    r"on|off|auto|true|false|yes|no|none|null|all|enabled|disabled", re.IGNORECASE
)
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_URL = re.compile(
    r"(?P<protocol>\b[a-z][a-z0-9+.-]{0,20}://)(?:(?P<user>[^/\s'\"]*)@)?(?P<place>[^\s'\"?#]*)"
    r"(?:[?#](?P<query>[^\s'\"]*))?",
    re.IGNORECASE,
)
# The model's public name. Every llama.cpp server knows it, also if its help is not at hand.
_PUBLIC_FLAGS = frozenset(("-a", "--alias"))
_PATH_STARTS = ("/", "~/", "./", "../")
_HOST = re.compile(r"[a-z][a-z0-9+.-]*://(?:\*\*\*@)?[\w.-]+(?::\d+)?/?", re.IGNORECASE)
# Variables of runtimes, and of the libraries and loaders that they use.
_KNOWN_VARIABLE = re.compile(
    r"(?:LLAMA_ARG|GGML|CUDA|NVIDIA|NCCL|HIP|ROCR|HSA|AMD|GPU|VK|MESA|RADV|MTL|METAL|SYCL|ONEAPI"
    r"|ZE|UR|OMP|KMP|GOMP|OPENBLAS|MKL|BLIS|MALLOC|MIMALLOC)_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|DYLD_LIBRARY_PATH|PATH|PYTHONPATH|HOME|TMPDIR|LANG|LC_\w+|TZ"
)
_NO_HELP = HelpText("")
# The words of autofit, of a wrapper, of a command inside one word, or of the runtime. Values of
# unknown flags are kept in the first two, in the third after a flag with one dash, and never in
# the last.
_Source = Literal["own", "wrapper", "text", "arguments"]


def redact_arguments(words: Sequence[str], help_text: HelpText) -> tuple[str, ...]:
    """Return arguments of a runtime without secrets; its help lists the flags that it needs."""
    return tuple(_hide(words, help_text, "arguments"))


def redact_command(words: Sequence[str], help_text: HelpText = _NO_HELP) -> tuple[str, ...]:
    """Return a command of autofit without secrets.

    A word can itself be a command. After `--` come arguments of the runtime with that help.
    """
    given = list(words)
    end = given.index("--") + 1 if "--" in given else len(given)
    own = _hide(given[:end], help_text, "own")
    return (*own, *_hide(given[end:], help_text, "arguments" if help_text.flags else "text"))


def redact_wrapper(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words before the runtime without secrets."""
    return tuple(_hide(words, _NO_HELP, "wrapper"))


def redact_text(text: str, help_text: HelpText = _NO_HELP) -> str:
    """Return a text without secrets; it may be a command."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote has no end
        words = text.split()
    hidden = list(_hide(words, help_text, "text"))
    return text if hidden == words else " ".join(map(_quoted, hidden))


def redact_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables without the values that no runtime needs."""
    return {
        name: _hide_value(name, value, is_known=bool(_KNOWN_VARIABLE.fullmatch(name)))
        for name, value in env.items()
    }


def hidden_values(given: Iterable[str], shown: Iterable[str]) -> frozenset[str]:
    """Return the values that were hidden between two versions of the same texts."""
    found: set[str] = set()
    for text, hidden in zip(given, shown, strict=True):
        if text != hidden:
            pattern = "(.*)".join(map(re.escape, hidden.split(HIDDEN)))
            match = re.fullmatch(pattern, text, re.DOTALL)
            found |= set(match.groups() if match else (text,))
    return frozenset(value for value in found if len(value) >= _SHORTEST_SEARCHED)


def launch_secrets(plan: LaunchPlan, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets of a plan, and of inherited variables with names such as API_KEY."""
    shown, inherited = plan.shown, {n: v for n, v in environ.items() if _CREDENTIAL.search(n)}
    return hidden_values(
        (*plan.argv, *plan.env.values(), *inherited.values()),
        (*shown.argv, *shown.env.values(), *redact_variables(inherited).values()),
    )


def hide_values(text: str, values: Iterable[str]) -> str:
    """Return a text with stars in place of each of the values, the longest first."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _hide(words: Sequence[str], help_text: HelpText, source: _Source) -> Iterator[str]:
    rest = deque(words)
    while rest:
        word = rest.popleft()
        flag, equals, value = word.partition("=")
        if not _FLAG.fullmatch(flag):
            yield _hide_word(word, help_text, source)
            continue
        if not equals:
            yield word
            if not rest or not _takes_value(flag, rest[0], help_text):
                continue
            value = rest.popleft()
        shown = _hide_option(flag, value, help_text, source)
        yield f"{flag}={shown}" if equals else shown


def _hide_option(flag: str, value: str, help_text: HelpText, source: _Source) -> str:
    """Return the value of a flag without secrets."""
    if _CREDENTIAL.search(flag):
        return _hide_value(flag, value, is_known=False)
    if source == "own":
        is_variable, is_command = flag == "--env", re.search(r"\s", value) is not None
        if is_variable or is_command:
            return _hide_word(value, help_text, "wrapper" if is_variable else source)
        return _hide_value(flag, value, is_known=True)
    listed = help_text.get(_dashed(flag))
    if listed is not None:
        is_secret = _CREDENTIAL.fullmatch(listed.hint or "") is not None
        return _hide_value(flag, value, is_known=not is_secret)
    if source == "arguments":
        return _hide_value(flag, value, is_known=flag in _PUBLIC_FLAGS)
    if _ASSIGNMENT.fullmatch(value) or (source == "wrapper" and re.search(r"\s", value)):
        return _hide_word(value, help_text, source)
    is_short = not flag.startswith("--")
    return _hide_value(flag, value, is_known=source == "wrapper" or is_short)


def _hide_word(word: str, help_text: HelpText, source: _Source) -> str:
    """Return a word that is neither a flag nor its value, without secrets."""
    is_command = source != "arguments" and re.search(r"\s", word) is not None
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment and not (is_command and source == "own"):
        name, value = assignment.groups()
        return f"{name}={redact_variables({name: value})[name]}"
    if is_command:
        return redact_text(word, help_text)
    return _hide_value("", word, is_known=source != "arguments")


def _takes_value(flag: str, following: str, help_text: HelpText) -> bool:
    listed = help_text.get(_dashed(flag))
    if listed is not None:
        return listed.takes_value
    if _CREDENTIAL.search(flag):
        return help_text.get(_dashed(following)) is None
    return not _FLAG.fullmatch(following.partition("=")[0])


def _dashed(flag: str) -> str:
    """Return a flag as llama.cpp reads it: `--api_key` is `--api-key`."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _hide_value(name: str, value: str, *, is_known: bool) -> str:
    """Return a value, or stars in place of it or of its secret parts."""
    if _CREDENTIAL.search(name):
        is_file = _NAMES_FILE.search(name) is not None and value.startswith(_PATH_STARTS)
        return value if is_file or not value else HIDDEN
    shown = _URL.sub(_hide_address, value)
    if is_known or _is_setting(value) or _HOST.fullmatch(shown) or _is_path(value):
        return shown
    return HIDDEN


def _hide_address(found: re.Match[str]) -> str:
    """Return an address without user, password and query."""
    user = f"{HIDDEN}@" if found["user"] else ""
    query = f"?{HIDDEN}" if found["query"] else ""
    return f"{found['protocol']}{user}{found['place']}{query}"


def _is_setting(value: str) -> bool:
    parts = re.split(r"[,:/;-]", value)
    return bool(_SWITCH.fullmatch(value)) or all(_NUMBER.fullmatch(part) for part in parts)


def _is_path(value: str) -> bool:
    """Return whether a value is a path, or a list of paths of which one exists."""
    parts = value.split(":")
    if not all(part.startswith(_PATH_STARTS) for part in parts):
        return False
    try:
        return any(Path(part).expanduser().exists() for part in parts)
    except (OSError, ValueError, RuntimeError):  # too long, or a home that is not known
        return False


def _quoted(word: str) -> str:
    plain = word.replace(HIDDEN, "x")
    return word if shlex.quote(plain) == plain else shlex.quote(word)
