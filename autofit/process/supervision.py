"""A program under a guard, and autofit's connection to the guard."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from autofit.errors import AutofitError, UsageError
from autofit.process import guard as guard_program

PIPE_BYTES = 1 << 20
_START_LIMIT_S = 60.0  # for the guard's first answer, which takes 0.03 s on an idle machine
_ANSWER_MARGIN_S = 5.0
# In the environment of everything that a program starts.
_MARK = "AUTOFIT_LAUNCH"
_NO_PROCESS_HINT = "check the limit of processes (`ulimit -u`) and the free memory"


class Supervised:
    """A program with everything that it starts, and the guard that ends it with autofit.

    The guard is the parent of the program. It notices every death, and ends the program
    whenever autofit ends. Methods can be called from any thread.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        stdout_fd: int,
        stderr_fd: int,
    ) -> None:
        """Start the program; its standard input is empty.

        Raises:
            UsageError: the program does not exist, or cannot run here.
            AutofitError: the system failed to start it.
        """
        executable = find_executable(argv, env)
        self.pid = 0
        self._status: int | None = None
        self._is_gone = False
        self._is_stuck = False
        self._inbox = b""
        self._lock = threading.Lock()
        self._mark = uuid.uuid4().hex
        self._socket, theirs = socket.socketpair()
        try:
            self._guard = _start_guard(theirs, stdout_fd, stderr_fd)
            _send(self._socket, executable, argv, {**env, _MARK: self._mark}, cwd)
            first = self._first_answer()
        except BaseException:
            self._socket.close()  # the guard then ends what it has started
            raise
        finally:
            theirs.close()
        word, _, rest = first.partition(" ")
        if word != "started":
            self._finish()
            raise _start_error(executable, rest, cwd)
        self.pid = int(rest)
        self._socket.setblocking(False)
        self._take_in(b"")  # the program can have ended already

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the guard sends a line."""
        return self._socket.fileno()

    def poll(self) -> int | None:
        """Return the exit status (negative for a signal), or None while the program runs."""
        self._receive(0.0)
        return self._status

    def wait(self, limit_s: float) -> int | None:
        """Wait for the exit status, at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        while self._status is None and (left_s := deadline - time.monotonic()) > 0:
            self._receive(left_s)
        return self._status

    def stop(self, grace_s: float) -> int:
        """End the program and everything that it started; return its exit status.

        The first call sends SIGTERM. SIGKILL follows after the grace period, which a later call
        can only shorten.

        Raises:
            AutofitError: a process survived SIGKILL, because it hangs in a driver.
        """
        if not self._is_gone:
            with contextlib.suppress(OSError):  # `_receive` notices a lost guard
                self._socket.send(f"stop {max(grace_s, 0.0)}\n".encode())
            limit_s = max(grace_s, 0.0) + guard_program.STUCK_S + _ANSWER_MARGIN_S
            deadline = time.monotonic() + limit_s
            while not self._is_over() and (left_s := deadline - time.monotonic()) > 0:
                self._receive(left_s)
        if not self._is_gone:
            raise AutofitError(
                f"process {self.pid} does not end, even after SIGKILL",
                "it probably hangs in a device driver: see `dmesg`; restart the machine if the "
                "device cannot be used",
            )
        self._finish()
        return self._status if self._status is not None else -signal.SIGKILL

    def _is_over(self) -> bool:
        return self._is_gone or self._is_stuck

    def _finish(self) -> None:
        self._guard.wait()
        self._is_gone = True
        self._socket.close()

    def _first_answer(self) -> str:
        self._socket.settimeout(_START_LIMIT_S)
        try:
            while b"\n" not in self._inbox:
                data = self._socket.recv(4096)
                if not data:
                    raise AutofitError(
                        "the guard process did not start",
                        f"does `{sys.executable} -I -S -c ''` work?",
                    )
                self._inbox += data
        except TimeoutError as error:
            raise AutofitError(
                f"starting a process took longer than {_START_LIMIT_S:.0f} s",
                "free some memory, or wait until the machine is less busy",
            ) from error
        first, _, self._inbox = self._inbox.partition(b"\n")
        return first.decode()

    def _receive(self, limit_s: float) -> None:
        """Read lines of the guard, after waiting at most `limit_s`."""
        if self._is_gone:
            return
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(limit_s * 1000):
            return
        with self._lock:
            try:
                data = self._socket.recv(4096)
            except OSError:
                return  # another thread has read it, or has just finished
            self._take_in(data)
            if not data and not self._is_gone:
                self._handle_lost_guard()

    def _take_in(self, data: bytes) -> None:
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "exited":
                self._status = int(rest)
            elif word == "gone":
                self._is_gone = True
            elif word == "stuck":
                self._is_stuck = True

    def _handle_lost_guard(self) -> None:
        """Kill what the program started: the guard was killed, and the kernel killed the program.

        The kernel's signal does not reach a process in a session of its own.
        """
        import psutil  # noqa: PLC0415 - slow, and a guard is seldom killed

        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(_MARK) == self._mark:
                    process.kill()
        if self._status is None:
            self._status = -signal.SIGKILL
        self._is_gone = True


def find_executable(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the absolute path of the program that argv starts.

    Raises:
        UsageError: there is none, it is not executable, or argv cannot be passed to a program.
    """
    if not argv or not argv[0]:
        raise UsageError("no program to start", "name the runtime with --runtime PATH")
    if any("\0" in text for text in argv):
        raise UsageError("an argument contains a NUL character", "remove it")
    found = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if found is not None:
        return str(Path(found).absolute())
    path = Path(argv[0])
    if "/" not in argv[0]:
        raise UsageError(f"no program named '{argv[0]}' on PATH", "install it, or give its path")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a program", "give the path of the program")
    if path.exists():
        raise UsageError(f"{path} is not executable", f"`chmod +x {path}`, or give another path")
    raise UsageError(f"no such program: {path}", "check the path")


def _start_guard(theirs: socket.socket, stdout_fd: int, stderr_fd: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard_program.__file__],
            stdin=theirs.fileno(),
            stdout=stdout_fd,
            stderr=stderr_fd,
            start_new_session=True,  # Ctrl-C at the terminal is for autofit alone
            cwd="/",
        )
    except OSError as error:
        raise AutofitError(
            f"cannot start a process: {error.strerror}",
            _NO_PROCESS_HINT,
        ) from error


def _send(
    ours: socket.socket,
    executable: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
) -> None:
    what = (executable, list(argv), dict(env), None if cwd is None else str(cwd), os.getpid())
    message = marshal.dumps(what)
    with contextlib.suppress(BrokenPipeError):  # a missing answer shows that the guard died
        ours.sendall(len(message).to_bytes(4, "big") + message)


def _start_error(executable: str, fault: str, cwd: Path | None) -> AutofitError:
    step, _, number = fault.partition(" ")
    code = int(number)
    if step == "cwd":
        return UsageError(f"cannot work in {cwd}: {os.strerror(code)}", "give another folder")
    if code == errno.ENOEXEC:
        return UsageError(
            f"{executable} is not a program of this system",
            "use a program for this processor and system; a script must begin with `#!`",
        )
    if code == errno.ENOENT:
        return UsageError(
            f"{executable} cannot start: its interpreter or loader is missing",
            f"`file {executable}` shows the missing file: install it",
        )
    interpreter = _interpreter(executable)
    if code == errno.EACCES and interpreter and not shutil.which(interpreter):
        return UsageError(
            f"{executable} cannot start: its interpreter {interpreter} is not executable",
            f"give another one in the first line of {executable}",
        )
    if code == errno.EACCES:
        return UsageError(
            f"no permission to execute {executable}",
            "if its file system is mounted noexec, copy it elsewhere",
        )
    return AutofitError(f"cannot start {executable}: {os.strerror(code)}", _NO_PROCESS_HINT)


def _interpreter(executable: str) -> str:
    """Return the program that a script's first line names, empty if there is none."""
    try:
        with Path(executable).open("rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    words = first.removeprefix(b"#!").split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""


def open_pipe() -> tuple[int, int]:
    """Open a large pipe and return its read end and its write end.

    A server that prints while this process is busy then does not have to wait.
    """
    read_fd, write_fd = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the memory of a user's pipes is limited
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd
