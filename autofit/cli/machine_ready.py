"""A machine that is ready to measure: no other autofit measures, and no program disturbs."""

from __future__ import annotations

import math
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import click

from autofit.errors import MachineInUseError
from autofit.machine.host_load import wait_until_quiet, watch_host
from autofit.machine.lock import machine_lock
from autofit.text_format import duration

_ANSWER_LIMIT_S = 60.0
_REPORT_INTERVAL_S = 60.0


@contextmanager
def ready_machine(
    wait_s: float | None, purpose: str, devices: Sequence[str] = ()
) -> Iterator[None]:
    """Wait until this machine is free and quiet, and lock it, or some devices, for the block.

    With `wait_s` None, neither wait nor lock. Build the task inside the block, because a task
    reads the free memory of devices.

    Raises:
        MachineInUseError: the machine was not ready within `wait_s` seconds.
    """
    if wait_s is None:
        yield
        return
    progress = _Progress()
    deadline = time.monotonic() + wait_s
    with machine_lock(purpose, devices=devices, wait_s=wait_s, report=progress.report_lock):
        state = wait_until_quiet(deadline - time.monotonic(), progress.report_load)
        if state.is_busy:
            raise MachineInUseError(
                f"still busy after {duration(wait_s)}: {'; '.join(state.warnings())}",
                "give --wait more time, or leave it out and use --yes to measure anyway",
            )
        progress.end()
        yield


class _Progress:
    """Lines on stderr about a wait: one when the reason changes, and one every minute."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._next_s = -math.inf
        self._is_lock: bool | None = None

    def report_lock(self, message: str) -> None:
        self._report(message, is_lock=True)

    def report_load(self, message: str) -> None:
        self._report(message, is_lock=False)

    def _report(self, message: str, *, is_lock: bool) -> None:
        now_s = time.monotonic()
        if is_lock == self._is_lock and now_s < self._next_s:
            return
        waited_s = now_s - self._began_s
        since = f" for {duration(waited_s)}" if self._is_lock is not None else ""
        click.echo(f"waiting{since}: {message} (Ctrl-C stops)", err=True)
        self._is_lock, self._next_s = is_lock, now_s + _REPORT_INTERVAL_S

    def end(self) -> None:
        if self._is_lock is not None:
            waited = duration(time.monotonic() - self._began_s)
            click.echo(f"the machine is quiet after {waited}", err=True)


def confirm_when_busy() -> None:
    """Ask the user on a terminal whether to measure while other programs use the machine.

    Raises:
        MachineInUseError: the user answered no, or did not answer.
    """
    if not sys.stdin.isatty():
        return
    state = watch_host(0.5)
    if not state.is_busy:
        return
    click.echo("; ".join(state.warnings()), err=True)
    if not ask("The machine is busy. Measure anyway?", sys.stdin, limit_s=_ANSWER_LIMIT_S):
        raise MachineInUseError(
            "the machine is busy, and nothing was measured",
            "use --wait to start when it is quiet, or --yes to measure anyway",
        )


def ask(question: str, answers: TextIO, *, limit_s: float) -> bool:
    """Ask a question on stderr. Return True only for a yes within `limit_s` seconds."""
    click.echo(
        f"{question} [y/N] (no in {limit_s:.0f} s; --yes does not ask) ", nl=False, err=True
    )
    is_answered, _, _ = select.select([answers], [], [], limit_s)
    answer = answers.readline() if is_answered else ""
    if not answer.endswith("\n"):
        click.echo(err=True)
    return answer.strip().lower() in ("y", "yes")
