"""`python -m autofit.runtime.embedded`: the xllamacpp package behind llama-server's flags.

xllamacpp serves llama.cpp's HTTP API from C++; this turns arguments into its parameters and
answers `--help`, `--version` and `--list-devices` in llama-server's format.
"""

from __future__ import annotations

import signal
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.runtime.discovery.help_text import Flag, parse_help
from autofit.runtime.embedded.settings import apply

HELP = Path(__file__).with_name("embedded_help.txt").read_text(encoding="utf-8")
FLAGS = parse_help(HELP).flags


def main(words: list[str]) -> int:
    """Answer a question, or serve until SIGTERM or SIGINT; returns the exit status."""
    try:
        given = list(_read(words))
        asked = {flag.spellings[-1] for flag, _, _ in given}
        if "--help" in asked:
            sys.stdout.write(HELP)
            return 0
        import xllamacpp  # noqa: PLC0415 - slow, and help does not need it

        if "--version" in asked:
            sys.stdout.write(_version(xllamacpp.__version__, **xllamacpp.BUILD_INFO))
            return 0
        if "--list-devices" in asked:
            sys.stdout.write(_devices(xllamacpp.get_device_info()))
            return 0
        params = xllamacpp.CommonParams()
        params.n_parallel, params.hostnames, params.port = -1, ["127.0.0.1"], 8080
        apply(params, given)
        return _serve(xllamacpp.Server(params))
    except UsageError as error:
        sys.stderr.write(f"{error.message}\n")
    except ValueError as error:  # the package refuses its parameters before it starts
        sys.stderr.write(f"error: {error}\n")
    except RuntimeError:
        pass  # the package has printed the runtime's own lines on stderr
    return 1


def _read(words: list[str]) -> Iterator[tuple[Flag, str, str]]:
    """Each flag with the word that named it and its value.

    Raises:
        UsageError: a word is no flag, or a value is missing.
    """
    rest = iter(words)
    for word in rest:
        flag = FLAGS.get(word.replace("_", "-") if word.startswith("--") else word)
        if flag is None:
            raise UsageError(f"error: invalid argument: {word}")
        value = next(rest, None) if flag.takes_value else ""
        if value is None:
            raise UsageError(
                f'error while handling argument "{word}": expected value for argument'
            )
        yield flag, word, value


def _version(
    version: str, *, build_number: int, commit: str, compiler: str, build_target: str
) -> str:
    first = f"version: {version} (build {build_number}, commit {commit})"
    return f"{first}\nbuilt with {compiler} for {build_target}\n"


def _devices(devices: list[dict[str, Any]]) -> str:
    mib = 1024 * 1024
    lines = [
        f"  {device['name']}: {device['description']} "
        f"({device['memory_total'] // mib} MiB, {device['memory_free'] // mib} MiB free)"
        for device in devices
        if device["type"].name.endswith("GPU")  # of its own, or the processor's
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"]), ""])


def _serve(server: Any) -> int:  # noqa: ANN401 - the package's
    # Until here (the first milliseconds of serving too: the package returns no sooner) a signal
    # has ended the process at once, as it does while llama-server loads.
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with suppress(OSError):  # an answer shows that its loop runs: ended before, it would hang
        urllib.request.urlopen(f"{server.listening_address}/slots").close()  # noqa: S310
    stopped.wait()
    return 0  # the server ends, and prints its memory table, as its object goes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
