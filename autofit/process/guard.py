"""The guard: a script that starts one program and ends it when autofit ends.

`autofit.process.supervision` runs it as `python -I -S guard.py`. It imports little, because it
costs every launch some 25 ms, and nothing of autofit. Its standard input is a socket:

    from autofit   a length and a marshalled (executable, argv, env, cwd, pid of autofit),
                   then lines `stop GRACE_S`
    to autofit     lines `started PID` or `failed STEP ERRNO`, then `exited STATUS` (negative
                   for a signal) when the program is dead, `gone` when everything that it
                   started is dead too, `stuck` when a process survives SIGKILL

If the socket ends, the parent changes or the guard gets a signal, autofit is gone. The program
then gets SIGTERM, and SIGKILL after a grace period. The same happens to processes that are left
when the program ends. SIGTERM is sent once to each process: a second one makes llama-server exit
with 1 and lose its memory table.

If the guard itself is killed, even together with autofit, the kernel kills the program and its
process group.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # type checkers know the name, and `typing` loads slowly
if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_S = 5.0  # for processes that are left when the program ends
ORPHAN_GRACE_S = 1.0  # without autofit the program's last output has no reader
STUCK_S = 10.0  # after SIGKILL; a process that lives longer hangs inside a driver
PARENT_CHECK_S = 2.0
KILL_EVERY_S = 0.1

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

FATAL = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
# Python, or a parent such as nohup, can have changed these, but a program expects the defaults.
TO_RESTORE = (*FATAL, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


def _prctl(option: int, value: int) -> bool:
    """Call Linux's prctl; return False on other systems and on failure."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # noqa: PLC0415 - only Linux needs it

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _die_with_guard(alive_fd: int) -> None:
    """Let the kernel kill this process and its group once the guard is dead.

    `alive_fd` is the read end of a pipe, and the guard has its write end. When that is closed, the
    kernel sends the group a signal, which also reaches what a wrapper has started.
    """
    # For a program that closes the pipe; it does not reach other processes.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if not hasattr(fcntl, "F_SETSIG"):
        return
    try:
        fcntl.fcntl(alive_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(alive_fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(alive_fd, fcntl.F_GETFL)
        fcntl.fcntl(alive_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        os.set_inheritable(alive_fd, True)
    except OSError:
        pass  # an emulated kernel without these signals


def _send(kill: Callable[[int, int], None], target: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib loads slowly
        kill(target, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, or has changed its user


class Guard:
    """The supervisor of one program and everything that it starts."""

    def __init__(self, socket_fd: int) -> None:
        self.socket_fd = socket_fd
        self.parent = 0
        self.leader = 0
        self.is_leader_dead = False
        self.has_children = True
        self.is_autofit_gone = False
        self.is_orphan_stopped = False
        self.kill_at: float | None = None  # set when SIGTERM is sent
        self.is_stuck = False
        self.inbox = b""
        # Orphans of any depth, even in their own session, become our children.
        self.is_reaper = _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.wake_fd, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fatal in FATAL:
            signal.signal(fatal, self.on_fatal_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def on_fatal_signal(self, *_: object) -> None:
        """Note that the guard must end, and the program with it."""
        self.is_autofit_gone = True

    def send_line(self, line: str) -> None:
        """Send autofit a line."""
        try:
            os.write(self.socket_fd, line.encode() + b"\n")
        except OSError:
            self.is_autofit_gone = True

    def read_exactly(self, size: int) -> bytes:
        """Read a part of the first message; end the guard if autofit is gone."""
        data = b""
        while len(data) < size:
            part = os.read(self.socket_fd, size - len(data))
            if not part:
                sys.exit(0)
            data += part
        return data

    def start(self) -> None:
        """Start the program; end the guard if that fails."""
        size = int.from_bytes(self.read_exactly(4), "big")
        executable, argv, env, cwd, self.parent = marshal.loads(self.read_exactly(size))  # noqa: S302 - from our own parent
        fault_read, fault_write = os.pipe()
        # Both ends stay open as long as the guard lives. Linux releases a dead process's files in
        # reverse order, so that the write end is gone while there still is a reader.
        self.alive_read_fd, self.alive_fd = os.pipe()
        guard = os.getpid()
        self.leader = os.fork()
        if self.leader == 0:
            self.become(executable, argv, env, cwd, fault_write, guard)
        os.close(fault_write)
        fault = os.read(fault_read, 64)
        os.close(fault_read)
        if fault:
            self.send_line("failed " + fault.decode())
            sys.exit(0)
        self.send_line(f"started {self.leader}")
        # Only the program has the pipes open from now on, so that they end with it.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)

    def become(  # noqa: PLR0917 - everything that a program is started with
        self,
        executable: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        fault_fd: int,
        guard: int,
    ) -> None:
        """Execute the program in the child process, or report why not; never return."""
        step = "start"
        try:
            os.setsid()
            os.close(self.alive_fd)
            _die_with_guard(self.alive_read_fd)
            if os.getppid() != guard:
                os._exit(127)
            signal.set_wakeup_fd(-1)
            for number in TO_RESTORE:
                signal.signal(number, signal.SIG_DFL)
            self.forbid_core()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            step = "cwd"
            if cwd is not None:
                os.chdir(cwd)
            step = "exec"
            os.execve(executable, argv, env)  # noqa: S606 - the purpose of a guard
        except (OSError, ValueError) as error:
            os.write(fault_fd, f"{step} {getattr(error, 'errno', 0)}".encode())
        finally:
            os._exit(127)

    def forbid_core(self) -> None:
        """Forbid core files: a server that aborts would write all its memory to disk."""
        import resource  # noqa: PLC0415 - only the child needs it

        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))

    def reap(self) -> None:
        """Collect every dead child, and report the exit of the program."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                return
            if pid == 0:
                return
            if pid == self.leader:
                self.is_leader_dead = True
                self.send_line(f"exited {os.waitstatus_to_exitcode(status)}")

    def is_gone(self) -> bool:
        """Return whether the program and everything that it started are dead."""
        if not self.is_leader_dead:
            return False
        if self.is_reaper:
            return not self.has_children
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):  # the latter for zombies on macOS
            return True
        return False

    def descendants(self) -> dict[int, int] | None:
        """Return the process group of every living descendant, or None without /proc."""
        parents: dict[int, int] = {}
        groups: dict[int, int] = {}
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as below
        except OSError:
            return None
        for name in names:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - pathlib loads slowly
                    state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if state not in {b"Z", b"X"}:
                parents[int(name)] = int(parent)
                groups[int(name)] = int(group)
        found = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: groups[pid] for pid in found if pid != os.getpid()}

    def signal_all(self, number: int) -> None:
        """Send a signal once to each process of the group and to each descendant outside it."""
        living = self.descendants()
        if living is None:
            _send(os.killpg, self.leader, number)
            return
        if self.leader in living.values():
            _send(os.killpg, self.leader, number)
        for pid, group in living.items():
            if group != self.leader:
                _send(os.kill, pid, number)

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM the first time, and plan SIGKILL for the end of the grace period."""
        kill_at = time.monotonic() + grace_s
        if self.kill_at is None:
            self.kill_at = kill_at
            self.signal_all(signal.SIGTERM)
        else:
            self.kill_at = min(self.kill_at, kill_at)

    def kill_when_due(self) -> None:
        """Send SIGKILL after the grace period, repeatedly because new processes can appear."""
        if self.kill_at is None or time.monotonic() < self.kill_at:
            return
        self.signal_all(signal.SIGKILL)
        if not self.is_stuck and time.monotonic() > self.kill_at + STUCK_S:
            self.is_stuck = True
            self.send_line("stuck")

    def listen(self) -> None:
        """Wait for a signal, a message, or the next action that is due."""
        wait_s = PARENT_CHECK_S
        if self.kill_at is not None and not self.is_stuck:
            due_s = self.kill_at - time.monotonic() if self.is_reaper else 0.0
            wait_s = min(wait_s, max(due_s, KILL_EVERY_S))
        watched = [self.wake_fd] if self.is_autofit_gone else [self.wake_fd, self.socket_fd]
        ready, _, _ = select.select(watched, [], [], wait_s)
        if self.wake_fd in ready:
            os.read(self.wake_fd, 512)
        if self.socket_fd in ready:
            self.take_message()
        if os.getppid() != self.parent:
            self.is_autofit_gone = True

    def take_message(self) -> None:
        """Read requests from autofit; the end of the socket means that autofit is gone."""
        try:
            data = os.read(self.socket_fd, 4096)
        except OSError:
            data = b""
        if not data:
            self.is_autofit_gone = True
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            self.stop(float(line.split()[1]))

    def serve(self) -> None:
        """Supervise the program until everything that it started is dead."""
        while True:
            self.reap()
            if self.is_gone():
                self.send_line("gone")
                return
            if self.is_autofit_gone and not self.is_orphan_stopped:
                self.is_orphan_stopped = True
                self.stop(ORPHAN_GRACE_S)
            elif self.is_leader_dead and self.kill_at is None:
                self.stop(GRACE_S)
            self.kill_when_due()
            self.listen()


if __name__ == "__main__":
    guard = Guard(0)
    guard.start()
    guard.serve()
