"""`python -m autofit.runtime.embedded`: the xllamacpp package with llama-server's flags.

xllamacpp serves llama.cpp's HTTP API from C++. This program converts arguments into its
parameters, and prints help, version and devices in llama-server's format.
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
from autofit.runtime.embedded.settings import apply_flags
from autofit.units import MIB

HELP = Path(__file__).with_name("embedded_help.txt").read_text(encoding="utf-8")
FLAGS = parse_help(HELP).flags


def main(words: list[str]) -> int:
    """Print what was requested, or serve until SIGTERM or SIGINT; return the exit status."""
    try:
        given = list(_parse(words))
        names = {flag.spellings[-1] for flag, _, _ in given}
        if "--help" in names:
            sys.stdout.write(HELP)
            return 0
        import xllamacpp  # noqa: PLC0415 - slow, and help does not need it

        if "--version" in names:
            sys.stdout.write(_format_version(xllamacpp.__version__, **xllamacpp.BUILD_INFO))
            return 0
        if "--list-devices" in names:
            sys.stdout.write(_format_devices(xllamacpp.get_device_info()))
            return 0
        params = xllamacpp.CommonParams()
        params.n_parallel, params.hostnames, params.port = -1, ["127.0.0.1"], 8080
        apply_flags(params, given)
        return _serve(xllamacpp.Server(params))
    except UsageError as error:
        sys.stderr.write(f"{error.message}\n")
    except ValueError as error:  # the package rejects its parameters before it starts
        sys.stderr.write(f"error: {error}\n")
    except RuntimeError:
        pass  # the package has printed the runtime's messages on stderr
    return 1


def _parse(words: list[str]) -> Iterator[tuple[Flag, str, str]]:
    """Yield each flag with its word and its value.

    Raises:
        UsageError: a word is not a flag, or a value is missing.
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


def _format_version(
    version: str, *, build_number: int, commit: str, compiler: str, build_target: str
) -> str:
    first = f"version: {version} (build {build_number}, commit {commit})"
    return f"{first}\nbuilt with {compiler} for {build_target}\n"


def _format_devices(devices: list[dict[str, Any]]) -> str:
    lines = [
        f"  {device['name']}: {device['description']} "
        f"({device['memory_total'] // MIB} MiB, {device['memory_free'] // MIB} MiB free)"
        for device in devices
        if device["type"].name.endswith("GPU")  # discrete or integrated
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"]), ""])


def _serve(server: Any) -> int:  # noqa: ANN401 - the package's
    # Until here a signal ends the process at once, as it does while llama-server loads. That
    # includes the first milliseconds of serving, because the package returns no sooner.
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with suppress(OSError):  # a stop hangs unless the server's loop runs, which this waits for
        urllib.request.urlopen(f"{server.listening_address}/slots").close()  # noqa: S310
    stopped.wait()
    return 0  # its destructor ends the server, which prints its memory table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
