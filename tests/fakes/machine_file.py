"""The machine file, the shared memory and the model cache that FAKE_MACHINE points to."""

# ruff: noqa: PTH100, PTH104, PTH116, PTH123 -- pathlib would slow every start

from __future__ import annotations

import marshal
import os

from fakes.flags import CommandLine
from fakes.gguf_header import model_of, read_header, shards
from fakes.machine import Machine
from fakes.memory_state import State
from fakes.model import Model


def read_machine() -> tuple[Machine, State]:
    """The machine and its shared memory."""
    path = os.environ["FAKE_MACHINE"]
    with open(path, encoding="utf-8") as file:
        machine = Machine.from_json(file.read())
    return machine, State(os.environ.get("FAKE_STATE", path + ".state"), machine)


def load_model(path: str) -> Model:
    """The model in a file; headers are long, so the parsed model is kept next to the machine."""
    stats = [os.stat(shard) for shard in shards(path)]
    key = [(os.path.abspath(path), s.st_size, s.st_mtime_ns) for s in stats]
    kept = os.environ["FAKE_MACHINE"] + ".models"
    try:
        with open(kept, "rb") as file:
            known, header = marshal.load(file)  # noqa: S302  # our own file
        if known == key:
            return model_of(header)
    except (OSError, EOFError, ValueError, TypeError):
        pass
    header = read_header(path)
    with open(f"{kept}.{os.getpid()}", "wb") as file:
        marshal.dump((key, header), file)
    os.rename(f"{kept}.{os.getpid()}", kept)
    return model_of(header)


def shown_devices(machine: Machine, line: CommandLine, hidden: str = "") -> list[int]:
    """The devices that the runtime sees: RPC ones only when asked for, and those first."""
    servers = str(line.other.get("--rpc", "")).split(",")
    indices = [
        i
        for i, device in enumerate(machine.devices)
        if (not device.endpoint or device.endpoint in servers) and device.name != hidden
    ]
    return sorted(indices, key=lambda i: machine.devices[i].backend != "RPC")
