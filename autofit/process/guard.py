"""The guard: starts one program in a session of its own, and sees that it ends with autofit.

A script, run by `autofit.process.supervision` as `python -I -S guard.py`. It imports little
(it costs every launch some 25 ms) and nothing of autofit. Its standard input is a socket:

    from autofit   a length and a marshalled (executable, argv, env, cwd, pid of autofit),
                   then lines `stop GRACE_S`
    to autofit     lines `started PID` or `failed STEP ERRNO`, then `exited STATUS` (negative:
                   a signal) when the program is dead, `gone` when all it started is dead
                   too, `stuck` when something survives SIGKILL

The end of the socket, another parent and a signal to the guard all mean that autofit is gone:
the program gets SIGTERM, some time, then SIGKILL, and so does whatever it left behind when it
ended. SIGTERM is sent once to each process, for a second one makes llama-server exit with 1
and lose its memory table.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # the name alone is enough for a type checker; `typing` loads slowly
if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_S = 5.0  # for what the program leaves behind
ORPHAN_GRACE_S = 1.0  # when autofit is gone: nobody will read the program's last words
STUCK_S = 10.0  # after SIGKILL; longer means a process that hangs inside a driver
PARENT_CHECK_S = 2.0
KILL_EVERY_S = 0.1

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

FATAL = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
# What Python or a parent such as nohup may have changed, and a program expects untouched.
TO_RESTORE = (*FATAL, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


def _prctl(option: int, value: int) -> bool:
    """Linux's prctl; False where there is none."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # noqa: PLC0415 - only Linux has a use for it

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _send(kill: Callable[[int, int], None], target: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib loads slowly
        kill(target, number)
    except (ProcessLookupError, PermissionError):
        pass  # it ended by itself, or has become another user


class Guard:
    """One program and everything it starts, until all of it is dead."""

    def __init__(self, socket_fd: int) -> None:
        self.socket_fd = socket_fd
        self.parent = 0
        self.leader = 0
        self.is_leader_dead = False
        self.has_children = True
        self.is_autofit_gone = False
        self.is_orphaned = False  # once the program was told to end for it
        self.kill_at: float | None = None  # set once SIGTERM was sent
        self.is_stuck = False
        self.inbox = b""
        # Orphans of any depth, also those in a session of their own, become our children.
        self.is_reaper = _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.wake_fd, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fatal in FATAL:
            signal.signal(fatal, self.on_fatal_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def on_fatal_signal(self, *_: object) -> None:
        """Somebody ends the guard: the program must not outlive it."""
        self.is_autofit_gone = True

    def tell(self, line: str) -> None:
        """Send autofit a line, if it is still there."""
        try:
            os.write(self.socket_fd, line.encode() + b"\n")
        except OSError:
            self.is_autofit_gone = True

    def read_exactly(self, size: int) -> bytes:
        """Bytes of the first message; ends the guard when autofit is gone before it."""
        data = b""
        while len(data) < size:
            part = os.read(self.socket_fd, size - len(data))
            if not part:
                sys.exit(0)
            data += part
        return data

    def start(self) -> None:
        """Start the program; ends the guard when that fails."""
        size = int.from_bytes(self.read_exactly(4), "big")
        executable, argv, env, cwd, self.parent = marshal.loads(self.read_exactly(size))  # noqa: S302 - from our own parent
        fault_read, fault_write = os.pipe()
        guard = os.getpid()
        self.leader = os.fork()
        if self.leader == 0:
            self.become(executable, argv, env, cwd, fault_write, guard)
        os.close(fault_write)
        fault = os.read(fault_read, 64)
        os.close(fault_read)
        if fault:
            self.tell("failed " + fault.decode())
            sys.exit(0)
        self.tell(f"started {self.leader}")
        # The program alone holds the pipes now, so their end can be seen.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)

    def become(  # noqa: PLR0917 - what a program is started with
        self,
        executable: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        fault_fd: int,
        guard: int,
    ) -> None:
        """In the child: turn into the program, or tell why not. Does not return."""
        step = "start"
        try:
            os.setsid()
            # Should the guard itself be killed, the program goes with it.
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
            os.execve(executable, argv, env)  # noqa: S606 - what a guard is for
        except (OSError, ValueError) as error:
            os.write(fault_fd, f"{step} {getattr(error, 'errno', 0)}".encode())
        finally:
            os._exit(127)

    def forbid_core(self) -> None:
        """No core files: a server that aborts would first write all of its memory to disk."""
        import resource  # noqa: PLC0415 - only the child needs it

        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))

    def reap(self) -> None:
        """Collect every dead child and tell of the program's own death."""
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
                self.tell(f"exited {os.waitstatus_to_exitcode(status)}")

    def is_gone(self) -> bool:
        """Whether the program and all that it started are dead."""
        if not self.is_leader_dead:
            return False
        if self.is_reaper:
            return not self.has_children
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):  # the latter: only zombies, on macOS
            return True
        return False

    def descendants(self) -> dict[int, int] | None:
        """The process group of every living descendant; None without /proc."""
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
        """Send SIGTERM unless that was done, and SIGKILL when the grace is over."""
        kill_at = time.monotonic() + grace_s
        if self.kill_at is None:
            self.kill_at = kill_at
            self.signal_all(signal.SIGTERM)
        else:
            self.kill_at = min(self.kill_at, kill_at)

    def kill_when_due(self) -> None:
        """Send SIGKILL once the grace is over, again and again: new processes may appear."""
        if self.kill_at is None or time.monotonic() < self.kill_at:
            return
        self.signal_all(signal.SIGKILL)
        if not self.is_stuck and time.monotonic() > self.kill_at + STUCK_S:
            self.is_stuck = True
            self.tell("stuck")

    def listen(self) -> None:
        """Wait for a signal, a message or the next thing that is due."""
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
        """Obey what autofit sent; its end of file means that autofit is gone."""
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
        """Watch over the program until all of it is dead."""
        while True:
            self.reap()
            if self.is_gone():
                self.tell("gone")
                return
            if self.is_autofit_gone and not self.is_orphaned:
                self.is_orphaned = True
                self.stop(ORPHAN_GRACE_S)
            elif self.is_leader_dead and self.kill_at is None:
                self.stop(GRACE_S)
            self.kill_when_due()
            self.listen()


if __name__ == "__main__":
    guard = Guard(0)
    guard.start()
    guard.serve()
