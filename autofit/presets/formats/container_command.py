"""The server in a container: its command, with the paths that its files have on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from autofit.presets.formats.env import known_variables, read_env_file
from autofit.presets.formats.yaml_text import variables_of
from autofit.presets.server_entry import MODEL_VARIABLE, ServerEntry, is_program

_RUNNERS = ("docker", "podman", "nerdctl")
# Options of `docker run` without a value; all others take one, in the next argument unless joined.
_SWITCHES = frozenset(
    (
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "-P", "--publish-all", "--rm"),
        *("--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable"),
        *("--sig-proxy", "--disable-content-trust", "-q", "--quiet"),
    )
)
# llama.cpp's image with all tools takes the tool's name first.
_TOOL_SERVER = ("--server", "-s")


def docker_run_server(argv: Sequence[str]) -> ServerEntry | None:
    """Return the server of a `docker run` command, or None for any other command."""
    runner, run, *words = (*argv, "", "")
    if PurePosixPath(runner).name not in _RUNNERS or run != "run" or not any(words):
        return None
    rest = iter(argv[2:])
    env: dict[str, str] = {}
    volumes: list[str] = []
    notices: list[str] = []
    entrypoint: list[str] = []
    image = ""
    for option, value in _run_options(rest):
        if option == "":
            image = value
        elif option in ("-e", "--env"):
            variables, more = known_variables(variables_of([value]))
            env |= variables
            notices += more
        elif option in ("-v", "--volume"):
            volumes.append(value)
        elif option == "--entrypoint":
            entrypoint = [value]
        elif option == "--env-file":
            variables, more = read_env_file(Path(value).expanduser(), "docker")
            env = {**variables, **env}
            notices += more
        elif option == "--mount":
            notices.append(f"{option} {value} is not read")
    notices.append(f"runs in the container {image}")
    command = server_command([*entrypoint, *rest], image)
    found = ServerEntry("", command, env, notices=tuple(notices))
    return in_container(found, volumes, Path())


def in_container(server: ServerEntry, volumes: Sequence[str], folder: Path) -> ServerEntry:
    """Return the server of a container, with paths of the host in its command and variables."""
    env = dict(server.env)
    if MODEL_VARIABLE in env:
        (env[MODEL_VARIABLE],) = with_host_paths([env[MODEL_VARIABLE]], volumes, folder)
    argv = with_host_paths(server.argv, volumes, folder)
    return replace(server, argv=argv, env=env, in_container=True)


def _run_options(arguments: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value, and at the end `""` with the image."""
    for argument in arguments:
        if not argument.startswith("-"):
            yield "", argument
            return
        option, equals, value = argument.partition("=")
        if option not in _SWITCHES and not _is_switch_group(argument):
            yield option, value if equals else next(arguments, "")


def _is_switch_group(argument: str) -> bool:
    """Return whether an argument is several switches in one, such as `-it`."""
    letters = "" if argument.startswith("--") else argument[1:]
    return bool(letters) and all(f"-{letter}" in _SWITCHES for letter in letters)


def server_command(argv: Sequence[str], image: str) -> tuple[str, ...]:
    """Return the command of a container, with the image's program where `argv` names none."""
    given = list(argv)
    if given and given[0] in _TOOL_SERVER and "full" in image:
        given.pop(0)
    if given and (is_program(given[0]) or not given[0].startswith("-")):
        return tuple(given)
    return ("llama-server", *given)


def with_host_paths(argv: Sequence[str], volumes: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the arguments with paths inside mounted volumes replaced by those of the host.

    A volume is `HOST:CONTAINER[:MODE]`. Relative host paths start in `folder`.
    """
    mounts = []
    for volume in volumes:
        host, _, inner = volume.partition(":")
        inner = inner.partition(":")[0]
        if inner.startswith("/") and host.startswith(("/", ".", "~")):
            mounts.append((inner.rstrip("/"), folder / Path(host).expanduser()))
    mounts.sort(key=lambda mount: -len(mount[0]))
    return tuple(_on_host(argument, mounts) for argument in argv)


def _on_host(argument: str, mounts: Sequence[tuple[str, Path]]) -> str:
    is_joined = argument.startswith("--")
    flag, equals, value = argument.partition("=") if is_joined else ("", "", argument)
    for inner, host in mounts:
        if value == inner or value.startswith(inner + "/"):
            return f"{flag}{equals}{host}{value[len(inner) :]}"
    return argument
