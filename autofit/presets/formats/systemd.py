"""systemd services, for the system's manager and for a user's (`systemctl --user`).

A value is split at blanks and quotes as in C. `%` begins a specifier everywhere, `$` a variable
in `ExecStart` (systemd.exec(5), systemd.service(5), systemd.syntax(7)).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autofit.errors import UsageError
from autofit.presets.command_options import flag_groups
from autofit.presets.formats.container_command import in_container, server_command
from autofit.presets.formats.env import read_env_file
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.formats.shell import command_server
from autofit.presets.formats.variable_expansion import expand, mark_unknown
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading
from autofit.presets.server_entry import ServerEntry
from autofit.text_format import one_line

# A model of hundreds of GB is read for minutes; a server that cannot start fails in seconds.
_RESTART_S = 5
_MOST_RESTARTS, _WITHIN_S = 5, 1800
_STOP_S = 30
_NETWORK = ("Wants=network-online.target", "After=network-online.target")
_PLAIN = re.compile(r"[\w./:=@+,^*(){}|-]+", re.ASCII)
_LOCKING = frozenset({"--mlock", "mlock", "mmap+mlock"})

_SERVICE = re.compile(r"^\s*\[Service\]\s*(?:[;#].*)?$", re.MULTILINE)
_CONTAINER = re.compile(r"^\s*\[Container\]\s*(?:[;#].*)?$", re.MULTILINE)
_SPECIFIER = re.compile(r"%(.)")
_ESCAPE = re.compile(r"\\\\|\\x([0-9a-fA-F]{2})|\\([snt])")
_ESCAPED_BYTES = {"s": 0x20, "n": 0x0A, "t": 0x09}
# A private character in place of each escaped byte, until the words are split.
_FIRST_BYTE = 0xE100
_BYTES = re.compile(f"[{chr(_FIRST_BYTE)}-{chr(_FIRST_BYTE + 0xFF)}]+")
# They apply under systemd only, and change a server's speed or memory.
_LIMITS = ("CPUAffinity", "AllowedCPUs", "CPUQuota", "CPUWeight", "NUMAPolicy", "NUMAMask", "Nice",
           "CPUSchedulingPolicy", "MemoryMax", "MemoryHigh", "AllowedMemoryNodes")  # fmt: skip


def _write(presets: Sequence[Preset]) -> str:
    """Return the preset as a unit file."""
    (preset,) = presets
    # A backslash at the end of a line would join the next one to it.
    name = one_line(preset.model_name).rstrip("\\ ").replace("%", "%%")
    lines = [
        *(f"# {line}" for line in heading(preset)),
        "# put it into ~/.config/systemd/user/, or into /etc/systemd/system/ with a User= line",
        "",
        "[Unit]",
        f"Description=llama.cpp server for {name}",
        *(_NETWORK if "--rpc" in preset.arguments else ()),
        f"StartLimitIntervalSec={_WITHIN_S}",
        f"StartLimitBurst={_MOST_RESTARTS}",
        "",
        "[Service]",
        "Type=exec",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in preset.env.items()),
        f"ExecStart={_command(preset)}",
        "Restart=on-failure",
        f"RestartSec={_RESTART_S}",
        f"TimeoutStopSec={_STOP_S}",
        "NoNewPrivileges=yes",
        *(["LimitMEMLOCK=infinity"] if locks_memory(preset) else []),
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def locks_memory(preset: Preset) -> bool:
    """Return whether the server locks its weights in memory; locked memory has its own limit."""
    values = {*preset.arguments, *preset.env.values(), *map(str, preset.params.values())}
    return bool(_LOCKING & values) or "LLAMA_ARG_MLOCK" in preset.env


def _command(preset: Preset) -> str:
    program, *rest = (*preset.wrapper, *preset.command)
    # Older managers need an absolute path, newer ones look in folders of their own.
    found = program if "/" in program else shutil.which(program) or program
    if "$" in found:
        raise UsageError(
            f"a systemd unit cannot start {found!r}: the path contains a `$`",
            "use the formats `args` or `shell`",
        )
    start = [_quoted(found), *map(_argument, rest)]
    groups = [" ".join(map(_argument, group)) for group in flag_groups(preset.served_arguments)]
    return " \\\n  ".join([" ".join(start), *groups])


def _argument(argument: str) -> str:
    return _quoted(argument).replace("$", "$$")


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a systemd unit cannot hold {text!r}: it is not valid Unicode",
            "rename the file, or use the formats `args` or `shell`",
        ) from error
    return '"' + "".join(map(_escaped, text.replace("%", "%%"))) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def _read(file: PresetFile) -> list[ServerEntry]:
    """Return the server of a unit or drop-in; several `ExecStart` are several servers.

    A unit of podman starts a container: its `[Container]` gives image, command and volumes.
    """
    if _CONTAINER.search(file.text):
        return [_container_server(file)]
    commands: list[str] = []
    env: dict[str, str] = {}
    file_env: dict[str, str] = {}  # takes precedence in any order of the lines
    notices: list[str] = []
    folder: Path | None = None
    for key, value in _settings(file.text, "[Service]"):
        if key == "ExecStart":
            commands = [*commands, value] if value else []
        elif key == "Environment":
            env = {**env, **_variables(value)} if value else {}
        elif key == "EnvironmentFile":
            variables, more = read_env_file(Path(_home_expanded(value.lstrip("-"))), "systemd")
            file_env |= variables
            notices += more
        elif key == "WorkingDirectory":
            folder = None if value.startswith("~") else Path(value.lstrip("-"))
        elif key in _LIMITS:
            notices.append(f"{key}={value} applies under systemd only, not to autofit's launches")
    name = file.path.stem
    names = [name] if len(commands) == 1 else [f"{name} {i}" for i in range(1, len(commands) + 1)]
    return [
        _server(own_name, command, {**env, **file_env}, folder).with_notices(*notices)
        for own_name, command in zip(names, commands, strict=True)
    ]


def _container_server(file: PresetFile) -> ServerEntry:
    """Return the server of a unit of podman (podman-systemd.unit(5))."""
    command: list[str] = []
    volumes: list[str] = []
    env: dict[str, str] = {}
    notices: list[str] = []
    image = ""
    for key, value in _settings(file.text, "[Container]"):
        if key == "Image":
            image = value
        elif key in ("Exec", "Entrypoint"):
            words = shlex.split(value.replace("%h", str(Path.home())))
            command = [*words, *command] if key == "Entrypoint" else [*command, *words]
        elif key == "Volume":
            volumes.append(_home_expanded(value))
        elif key == "Environment":
            env |= _variables(value)
        elif key == "EnvironmentFile":
            variables, more = read_env_file(Path(_home_expanded(value)), "docker")
            env = {**variables, **env}
            notices += more
    notices.append(f"runs in the container {image}")
    server = ServerEntry(file.path.stem, server_command(command, image), env)
    return in_container(server.with_notices(*notices), volumes, file.path.parent)


def _settings(text: str, header: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a section, with continued lines joined and without comments."""
    section, setting = "", ""
    for line in (*text.splitlines(), ""):
        stripped = line.strip()
        if stripped.startswith(("#", ";")):
            continue
        if not setting and stripped.startswith("[") and stripped.endswith("]"):
            section = stripped
            continue
        setting = f"{setting} {stripped}".strip() if setting else stripped
        if setting.endswith("\\"):
            setting = setting[:-1].rstrip() + " "
            continue
        key, equals, value = setting.partition("=")
        if equals and section == header:
            yield key.strip(), value.strip()
        setting = ""


def _home_expanded(path: str) -> str:
    return path.replace("%h", str(Path.home())).replace("%%", "%")


def _variables(value: str) -> dict[str, str]:
    # `%%` is a plain `%` here as well.
    words = (_unhidden(w.replace("%%", "%")) for w in shlex.split(_hidden_escapes(value)))
    pairs = (word.partition("=") for word in words)
    return {name: text for name, equals, text in pairs if equals}


def _server(name: str, command: str, env: Mapping[str, str], folder: Path | None) -> ServerEntry:
    def specified(found: re.Match[str]) -> str:
        known = {"%": "%", "h": str(Path.home())}.get(found[1])
        return known or mark_unknown(f"only systemd can replace {found[0]} in ExecStart")

    argv: list[str] = []
    for word in shlex.split(_hidden_escapes(command.lstrip("-@:+!|"))):
        text = expand(_SPECIFIER.sub(specified, word), env.get, "this unit")
        # `$NAME` as a word of its own is split into words, `${NAME}` is not.
        is_split = re.fullmatch(r"\$[A-Za-z_]\w*", word) is not None
        argv += map(_unhidden, text.split() if is_split else [text])
    found = command_server(ServerEntry(name, tuple(argv), env))
    return replace(found, folder=found.folder or folder)


def _hidden_escapes(text: str) -> str:
    """Return the text with C escapes as private characters, which `shlex` leaves alone."""

    def hidden(found: re.Match[str]) -> str:
        if found[1]:
            return chr(_FIRST_BYTE + int(found[1], 16))
        return chr(_FIRST_BYTE + _ESCAPED_BYTES[found[2]]) if found[2] else found[0]

    return _ESCAPE.sub(hidden, text)


def _unhidden(word: str) -> str:
    """Return a word with the private characters replaced by the bytes that they hide."""
    return _BYTES.sub(lambda f: os.fsdecode(bytes(ord(c) - _FIRST_BYTE for c in f[0])), word)


def _recognizes(file: PresetFile) -> bool:
    has_unit = _SERVICE.search(file.text) or _CONTAINER.search(file.text)
    return file.data is None and has_unit is not None


FORMAT = PresetFormat(
    suffix=".service",
    write=_write,
    recognizes=_recognizes,
    read=_read,
    names_servers=True,
)
