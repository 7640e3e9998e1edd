"""Folders with a fake runtime on a simulated machine, for tests.

    fake = FakeMachine(tmp_path, machine)
    subprocess.run([fake.server, "--list-devices"], env=fake.env)

`fake.server` is an executable `llama-server` with `llama-fit-params` and `fake-memory` next to
it; it needs no environment: the scripts carry their own.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.gguf_header import write_model
from fakes.machine import Machine
from fakes.memory_state import State, reading
from fakes.model import Model

_FAKES = Path(__file__).parent
_RUNNERS = _FAKES.parents[1] / "runners"
_SCRIPT = """#!/bin/sh
: "${{FAKE_MACHINE={machine}}}" "${{FAKE_STATE={state}}}"
export FAKE_MACHINE FAKE_STATE
{exports}exec {python} -I -S {program} "$@"
"""
_LIBRARIES = {"CUDA": "cuda", "ROCm": "hip", "Vulkan": "vulkan", "SYCL": "sycl",
              "Metal": "metal"}  # fmt: skip
_PROGRAMS = {
    "llama-server": "llama_server.py",
    "llama-fit-params": "llama_fit_params.py",
    "llama-perplexity": "llama_perplexity.py",
    "fake-memory": "fake_memory.py",
}


class FakeMachine:
    """A simulated machine with its programs in a folder."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        *,
        time_scale: float = 0.0,
        seed: int = 0,
        env: Mapping[str, str] | None = None,
        with_fit_params: bool = True,
        with_perplexity: bool = False,
        memory_words: Sequence[str] = ("--host",),
    ) -> None:
        self.folder = folder / f"machine-{machine.name}"
        self.bin = self.folder / "bin"
        self.bin.mkdir(parents=True)
        self.machine_file = self.folder / "machine.json"
        self.state_file = self.folder / "state.json"
        self.machine = machine
        self.machine_file.write_text(machine.to_json(), encoding="utf-8")
        self.env = {"FAKE_TIME_SCALE": str(time_scale), "FAKE_SEED": str(seed), **(env or {})}
        left_out = {
            "llama-fit-params": not with_fit_params,
            "llama-perplexity": not with_perplexity,
        }
        for name, program in _PROGRAMS.items():
            if not left_out.get(name):
                self._write_script(self.bin / name, program)
        self.memory_words = memory_words
        self.dialect = self.folder / "fake_server.yaml"
        self.write_build()

    def write_build(self) -> None:
        """Write the files that identify the build: its libraries and its dialect."""
        self._write_libraries()
        self.dialect.write_text(self._dialect(), encoding="utf-8")

    def _write_libraries(self) -> None:
        """Libraries whose bytes show what only environment variables switch on."""
        is_env = self.machine.runtime.prefetch == "env"
        base = b"\x7fELF GGML_SCHED_PREFETCH_EXPERTS\0" if is_env else b"\x7fELF"
        (self.bin / "libggml-base.so").write_bytes(base)
        for kind in {device.backend for device in self.machine.devices} & set(_LIBRARIES):
            words = b"\x7fELF GGML_OP_OFFLOAD_MIN_BATCH\0 cudaMalloc\0"
            words += b"GGML_CUDA_REGISTER_HOST\0" if is_env else b""
            (self.bin / f"libggml-{_LIBRARIES[kind]}.so").write_bytes(words)

    def _dialect(self) -> str:
        """fake_server.yaml for this machine, with what the dialect of its build has."""
        words = json.dumps([str(self.memory_command), *self.memory_words])
        traits = self.machine.runtime
        build = f"_prefetch_{traits.prefetch}" if traits.prefetch else ""
        build = build or "_moe_cache" * traits.has_moe_cache
        if build:
            shipped = _RUNNERS / f"llama_server{build}.yaml"
            return f"{shipped.read_text(encoding='utf-8')}\nmemory_command: {words}\n"
        text = (_FAKES / "fake_server.yaml").read_text(encoding="utf-8")
        return text.replace("[fake-memory]", words)

    def _write_script(self, path: Path, program: str) -> None:
        exports = "".join(
            f'export {name}="${{{name}-{value}}}"\n' for name, value in self.env.items()
        )
        path.write_text(
            _SCRIPT.format(
                machine=shlex.quote(str(self.machine_file)),
                state=shlex.quote(str(self.state_file)),
                exports=exports,
                python=shlex.quote(sys.executable),
                program=shlex.quote(str(_FAKES / program)),
            ),
            encoding="utf-8",
        )
        path.chmod(0o755)

    @property
    def server(self) -> Path:
        """The fake llama-server."""
        return self.bin / "llama-server"

    @property
    def fit_params(self) -> Path:
        """The fake llama-fit-params."""
        return self.bin / "llama-fit-params"

    @property
    def memory_command(self) -> Path:
        """Prints `NAME total free used` per device."""
        return self.bin / "fake-memory"

    @property
    def state(self) -> State:
        """The shared memory."""
        return State(str(self.state_file), self.machine)

    def write_model(self, model: Model, name: str = "model.gguf") -> Path:
        """The model's header as a file on this machine."""
        path = self.folder / name
        write_model(str(path), model)
        return path

    def fail(self, name: str, value: Any = None, **conditions: Any) -> None:
        """Have launches fail: see `faults`; conditions are those of `Fault`."""
        with self.state.edit() as data:
            data["faults"].append({"name": name, "value": value, **conditions})

    def heal(self) -> None:
        """No more failures on demand."""
        with self.state.edit() as data:
            data["faults"] = []

    def hold(self, device: str, mib: float) -> None:
        """Another program takes memory of a device (`host` for the host)."""
        with self.state.edit() as data:
            data["holders"].append({"device": device, "mib": mib})

    def let_go(self) -> None:
        """Other programs give everything back that `hold` took."""
        with self.state.edit() as data:
            data["holders"] = []

    def change(self, **fields: Any) -> None:
        """Change fields of the machine for launches from now on."""
        self.machine = replace(self.machine, **fields)
        self.machine_file.write_text(self.machine.to_json(), encoding="utf-8")

    @property
    def launches(self) -> int:
        """The number of processes that have loaded a model so far."""
        with self.state.edit() as data:
            return int(data["launches"])

    @property
    def owners(self) -> list[int]:
        """Processes that hold memory now."""
        with self.state.edit() as data:
            return [int(pid) for pid in data["owners"]]

    def memory(self) -> dict[str, tuple[float, float, float]]:
        """(total, free, used) in MiB by device, the host included."""
        return {name: (total, free, used) for name, total, free, used in reading(self.state)}

    def command(self, model: Path, params: Sequence[str] = ()) -> list[str]:
        """A command line that serves a model on a port still to be filled in."""
        return [str(self.server), "-m", str(model), "--port", "{port}", "-lv", "4", *params]

    def read_state(self) -> dict[str, Any]:
        """The raw state, for looking at."""
        return json.loads(self.state_file.read_text(encoding="utf-8"))
