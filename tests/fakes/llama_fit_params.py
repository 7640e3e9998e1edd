"""A fake llama-fit-params: the runtime's no-load estimator and fit, for a simulated machine.

`--fit-print on` prints one line per device, off the truth as far as the machine's traits say.
"""

# ruff: noqa: PTH100, PTH120 -- the path comes before our imports; pathlib would slow every start

from __future__ import annotations

import os
import shlex
import signal
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from fakes.flags import CommandLine, Parser, UsageError, env_params, help_text
from fakes.gguf_header import BadModelError
from fakes.launch import Launch
from fakes.ledger import Ledger
from fakes.log import Log
from fakes.machine import Machine
from fakes.machine_file import load_model, read_machine, shown_devices
from fakes.model import Model
from fakes.own_fit import FAILED, fit
from fakes.placement import buffer_name
from fakes.settings import RefusedError


def estimate(machine: Machine, model: Model, params: dict[str, Any], memory: Ledger) -> str:
    """`NAME MODEL CONTEXT COMPUTE ` for each device, then the host."""
    launch = Launch(machine, model, params, memory)
    share, constant = machine.runtime.fit_params_share, machine.runtime.fit_params_mib
    settings, lines = launch.settings, []
    # The estimator reckons with logits for a whole ubatch, the server for one token a slot.
    logits = 4.0 * model.n_vocab * (settings.ubatch - settings.parallel) / 1024 / 1024
    for at, index in enumerate(settings.devices):
        buffers = launch.allocation.devices[at]
        compute = buffers.compute_mib * share + constant
        compute += logits if at == launch.placement.output else 0.0
        context = buffers.kv_mib + buffers.recurrent_mib + buffers.cache_mib
        name = machine.devices[index].name
        lines.append(f"{name} {int(buffers.weights_mib)} {int(context)} {int(compute)} ")
    host = launch.allocation.host
    lines.append(f"Host {int(host.weights_mib)} {int(host.kv_mib)} {int(host.compute_mib)} ")
    return "\n".join(lines) + "\n"


def arguments(params: dict[str, Any], model: Model) -> str:
    """The fitted settings as a shell reads them."""
    words = [
        f"-c {params.get('context', model.context_train)}",
        f"-ngl {params.get('n_gpu_layers', -1)}",
    ]
    if "tensor_split" in params:
        words.append(f"-ts {params['tensor_split']}")
    if "override_tensor" in params:
        words.append(f'-ot "{params["override_tensor"]}"')
    return " ".join(words) + "\n"


def run(argv: list[str]) -> int:
    """Estimate or fit."""
    machine, state = read_machine()
    text = help_text(machine.runtime, "llama-fit-params")
    if "--help" in argv or "-h" in argv:
        os.write(1, text.encode())
        return 0

    def shown(line: CommandLine) -> list[int]:
        return shown_devices(machine, line)

    parser = Parser(
        text,
        lambda line: [machine.devices[i].name for i in shown(line)],
        lambda line: ["CPU", *(buffer_name(machine, i) for i in shown(line))],
    )
    try:
        line = parser.parse(argv, os.environ)
    except UsageError as error:
        os.write(1, error.before.encode())
        os.write(2, str(error).encode())
        return 1
    return answer(machine, state, line, Log(line.verbosity))


def answer(machine: Machine, state: Any, line: CommandLine, log: Log) -> int:
    """Answer a well-formed command line."""
    params = {"parallel": 1, **line.params, **env_params(os.environ, machine.runtime)}
    path = str(line.other.get("--model", ""))
    try:
        model = load_model(path)
    except (OSError, BadModelError):
        why = f"llama_model_loader: failed to load model from {path}"
        log.error_line(f"llama_model_load: error loading model: {why}")
        log.error_line("llama_model_load_from_file_impl: failed to load model")
        os.write(
            2,
            b"terminate called after throwing an instance of 'std::runtime_error'\n"
            b"  what():  failed to load model\n",
        )
        os.kill(os.getpid(), signal.SIGABRT)
    with state.edit() as data:
        devices, host = state.others(data)
    memory = Ledger(machine, tuple(devices), host)
    try:
        if line.other.get("--fit-print") == "on":
            log.say(
                "I",
                "llama_fit_params: printing estimated memory in MiB to stdout (device, "
                "model, context, compute) ...",
            )
            os.write(1, estimate(machine, model, params, memory).encode())
            return 0
        free = [memory.free_mib(i) for i in range(len(machine.devices))]
        fitted = fit(params, machine, model, free)
    except RefusedError as error:
        log.error_line(f"llama_init_from_model: {error}")
        log.error_line(FAILED)
        return 1
    for level, text in fitted.log:
        log.say("T" if level == "I" else level, text)
    if not fitted.is_fitted:
        log.error_line("llama_fit_params: failed to fit CLI arguments to free memory, exiting...")
        return 1
    log.say("I", "llama_fit_params: printing fitted CLI arguments to stdout...")
    os.write(1, arguments(fitted.params, model).encode())
    return 0


def words(text: str) -> list[str]:
    """A printed command line as words."""
    return shlex.split(text)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
