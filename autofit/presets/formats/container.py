"""What is started in a container: the server's own words behind those of the container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from autofit.presets.entry import is_program

_RUNNERS = ("docker", "podman", "nerdctl")
# Options of `docker run` without a value; all others take one, in the next word unless joined.
_SWITCHES = frozenset(
    (
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "-P", "--publish-all", "--rm"),
        *("--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable"),
        *("--sig-proxy", "--disable-content-trust", "-q", "--quiet"),
    )
)
_VARIABLE = ("-e", "--env")
_VOLUME = ("-v", "--volume")
_FILES = ("--env-file", "--mount")
# llama.cpp's image with all tools has the tool's name first.
_TOOL_SERVER = ("--server", "-s")


@dataclass(frozen=True, slots=True)
class Contained:
    """A server in a container, its file names as the host has them."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def docker_run(words: Sequence[str]) -> Contained | None:
    """The server of a `docker run` command; None where it is no such command."""
    if len(words) < 3 or PurePosixPath(words[0]).name not in _RUNNERS or words[1] != "run":  # noqa: PLR2004
        return None
    rest = iter(words[2:])
    env: dict[str, str] = {}
    volumes: list[str] = []
    notes: list[str] = []
    entrypoint: list[str] = []
    image = ""
    for option, value in _options(rest):
        if option == "":
            image = value
        elif option in _VARIABLE:
            name, _, text = value.partition("=")
            env[name] = text
        elif option in _VOLUME:
            volumes.append(value)
        elif option == "--entrypoint":
            entrypoint = [value]
        elif option in _FILES:
            notes.append(f"{option} {value} is not read")
    argv = server_words([*entrypoint, *rest], image)
    return Contained(
        with_host_paths(argv, volumes, Path()), env, (*notes, f"runs in the container {image}")
    )


def server_words(words: Sequence[str], image: str) -> tuple[str, ...]:
    """The command of a container, whose image names the program where the words do not."""
    given = list(words)
    if given and given[0] in _TOOL_SERVER and "full" in image:
        given.pop(0)
    if given and (is_program(given[0]) or not given[0].startswith("-")):
        return tuple(given)
    return ("llama-server", *given)


def with_host_paths(argv: Sequence[str], volumes: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The words with file names in mounted volumes as the host has them.

    A volume is `HOST:CONTAINER[:MODE]`; its host path starts in a folder unless absolute.
    """
    places = []
    for volume in volumes:
        host, _, inner = volume.partition(":")
        inner = inner.partition(":")[0]
        if inner.startswith("/") and (host.startswith(("/", ".", "~"))):
            places.append((inner.rstrip("/"), folder / Path(host).expanduser()))
    places.sort(key=lambda place: -len(place[0]))
    return tuple(_on_host(word, places) for word in argv)


def _on_host(word: str, places: Sequence[tuple[str, Path]]) -> str:
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    for inner, host in places:
        if value == inner or value.startswith(inner + "/"):
            return f"{flag}{equals}{host}{value[len(inner) :]}"
    return word


def _options(words: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value, and last the image, whose option is empty."""
    for word in words:
        if not word.startswith("-"):
            yield "", word
            return
        option, equals, value = word.partition("=")
        if option in _SWITCHES or (_is_bundle(word)):
            continue
        yield option, value if equals else next(words, "")


def _is_bundle(word: str) -> bool:
    """Whether it is several switches in one word, as `-it`."""
    letters = "" if word.startswith("--") else word[1:]
    return bool(letters) and all(f"-{letter}" in _SWITCHES for letter in letters)
