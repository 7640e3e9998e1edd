"""What a suite asks for, looked at before hours are spent on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autofit.cli.options.shared_options import read_task_options
from autofit.errors import UsageError
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.search.space_file import read_space, read_workload
from autofit.session.task_options import TaskOptions
from autofit.sweep.suite import Entry, Suite
from autofit.sweep.suite_file import line_in, suite_of
from autofit.yaml_files import did_you_mean

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap


def checked_suite(data: CommentedMap, path: Path, params: Callable[[], Collection[str]]) -> Suite:
    """The suite that a file's data describe, what it names looked at too.

    Models and runtimes need not be here; `params` tells the parameters that runtimes have.

    Raises:
        UsageError: it is faulty; every fault is told as `file:line: what`.
    """
    suite = suite_of(data, path)
    faults = [
        f"{path}:{line_in(data, ('entries', entry.place, key))}: entries.{entry.place}: "
        f"{key}: {what}"
        for entry in suite.entries
        for key, what in _faults(entry, params)
    ]
    if faults:
        hint = f"`autofit check {path}` shows this again"
        raise UsageError("\n".join(dict.fromkeys(faults)), hint)
    return suite


def _faults(entry: Entry, params: Callable[[], Collection[str]]) -> Iterator[tuple[str, str]]:
    """What is wrong with an entry, each with its key."""
    for key, look in (
        ("workload", lambda: read_workload(entry.workload)),
        ("space", lambda: read_space(entry.space or "moe", cores=1)),
        ("dialect", lambda: load_dialect(entry.dialect) if entry.dialect else None),
        ("devices", lambda: _task_of(entry, "devices")),
        ("rpc", lambda: _task_of(entry, "rpc")),
        ("env", lambda: _task_of(entry, "env")),
        ("wrapper", lambda: _task_of(entry, "wrapper")),
    ):
        try:
            look()
        except UsageError as error:
            yield key, error.message.splitlines()[0]
    known = params() if entry.pins else ()
    for name in entry.pins:
        if name not in known:
            question = did_you_mean(name, known)
            yield "set", f"no runtime has a parameter '{name}' {question}".strip()


def _task_of(entry: Entry, only: str) -> TaskOptions:
    """Options of the entry's commands, with one of those that are texts to be read.

    Raises:
        UsageError: one cannot be read.
    """
    wanted = {
        "devices": [f"{name}={mib}" for name, mib in entry.devices.items()],
        "rpc": entry.rpc,
        "env": [f"{name}={value}" for name, value in entry.env.items()],
        "wrapper": entry.wrapper,
    }
    kept = {key: value for key, value in wanted.items() if key == only}
    return read_task_options(
        {
            "model": Path(entry.model),
            "runtime": entry.runtime,
            "dialect": entry.dialect,
            "space": entry.space,
            "workload": entry.workload,
            "context": entry.context,
            "parallel": entry.parallel,
            "device": kept.get("devices", []),
            "rpc": kept.get("rpc", ""),
            "set_": [],
            "env": kept.get("env", []),
            "wrapper": kept.get("wrapper", ""),
            "kv_floor": entry.kv_floor,
            "extra_args": entry.args,
        }
    )
