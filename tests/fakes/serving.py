"""The serving part of the fake llama-server: load, allocate, answer, end."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, NoReturn

from fakes import failure_text, launch_log, own_fit, startup_log
from fakes.completion import Completer
from fakes.ending import Ending
from fakes.endpoints import Endpoints, while_loading
from fakes.faults import Faults
from fakes.flags import CommandLine, env_params
from fakes.gguf_header import BadModelError
from fakes.http_server import HttpServer
from fakes.launch import Failure, Launch, Step, StoppedError
from fakes.log import Log
from fakes.machine import Machine
from fakes.machine_file import load_model, shown_devices
from fakes.memory_state import SharedMemory, State
from fakes.model import Model
from fakes.placement import buffer_name
from fakes.replies import Replies
from fakes.scatter import Scatter
from fakes.settings import RefusedError

_RETRYING = (
    "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism"
)
_FORCED = {
    "oom-weights": ("load", "weights"), "oom-kv": ("context", "kv"),
    "oom-recurrent": ("context", "recurrent"), "oom-compute": ("context", "compute"),
}  # fmt: skip
_RUN_TIME = {
    "oom-prompt": ("prompt", ""), "oom-cublas": ("prompt", "cublas"),
    "oom-decode": ("prompt", "decode"), "oom-generate": ("generate", ""),
}  # fmt: skip


class Serving:
    """One process that serves a model."""

    def __init__(self, machine: Machine, state: State, argv: list[str], line: CommandLine) -> None:
        self.machine, self.traits, self.line = machine, machine.runtime, line
        self.scale = float(os.environ.get("FAKE_TIME_SCALE", "0"))
        self.params = {**line.params, **env_params(os.environ, self.traits)}
        self.memory = SharedMemory(state)
        self.faults = Faults.collect(
            os.environ.get("FAKE_FAIL", ""), self.memory.faults, self.memory.launch, self.params
        )
        self.path = str(line.other["--model"])
        self.log = Log(
            line.verbosity,
            prefix=line.other.get("--log-prefix") != "--no-log-prefix",
            jsonl=line.other.get("--log-jsonl") == "--log-jsonl",
        )
        self.ending = Ending(self.log, self.memory, self.faults, self.path)
        self.is_stopping = self._has_told_of_slots = False
        self.argv = argv
        self.address = ""

    def shown(self) -> list[int]:
        """Devices this run sees."""
        missing = self.faults.get("device-missing")
        return shown_devices(self.machine, self.line, str(missing.value) if missing else "")

    def run(self) -> NoReturn:
        """Load and serve until a signal comes."""
        fault = self.faults.get("reject-flag")
        if fault and fault.value in self.argv:
            self.log.raw(f"error: invalid argument: {fault.value}\n")
            self.ending.exit(1)
        self.grandchild()
        http = self.start()
        launch = self.load()
        self.warm_up(launch)
        self.listen(http, launch)
        self.wait(launch)

    def grandchild(self) -> None:
        """Leave a child that keeps our output open, if a fault says so."""
        fault = self.faults.get("grandchild")
        if fault and os.fork() == 0:
            os.execvp("sleep", ["sleep", str(fault.number(60))])  # noqa: S606  # a real child

    def start(self) -> HttpServer:
        """From the first line to the bound socket."""
        log, machine, params = self.log, self.machine, self.params
        shown = self.shown()
        startup_log.backend_banner(log, machine, shown)
        free = [self.memory.free_mib(i) for i in range(len(machine.devices))]
        threads = int(params.get("threads", machine.host.cores))
        rows = startup_log.device_rows(machine, shown, free)
        startup_log.initialising(log, machine, rows, (threads, threads))
        startup_log.http_lines(log, machine, is_parallel_auto=params.get("parallel", -1) == -1)
        host = str(self.line.other.get("--host", "127.0.0.1"))
        port = int(self.line.other.get("--port", 8080))
        self.address = f"http://{host}:{port}"
        try:
            if self.faults.get("port-in-use"):
                raise OSError  # noqa: TRY301  # as a bound socket would
            return HttpServer(host, port, while_loading)
        except OSError:
            where = f"hostname: {host}, port: {port}"
            log.error_line(f"srv         start: couldn't bind HTTP server socket, {where}")
            return self.ending.fail(failure_text.final("HTTP server error"))

    def load(self) -> Launch:
        """Load the model; ends the process where that fails."""
        log, path = self.log, self.path
        log.say("I", f"srv    load_model: loading model '{path}'")
        log.trace_line(f"srv    load_model: local path '{path}'")
        model = self.read(path)
        params = self.settle(model)
        startup_log.model_header(log, model, path)
        self.ending.strike("load")
        try:
            launch = Launch(self.machine, model, params, self.memory)
        except RefusedError as error:
            startup_log.model_info(log, model)
            self.ending.fail(
                [("E", f"llama_init_from_model: {error}"), *failure_text.context_tail(path)]
            )
        free = [self.memory.free_mib(i) for i in range(len(self.machine.devices))]
        launch_log.used_devices(log, launch, free)
        startup_log.model_info(log, model)
        launch_log.loading_tensors(log, launch)
        self.pause(launch)
        self.allocate(launch)
        return launch

    def read(self, path: str) -> Model:
        """The model file; ends the process where it is faulty."""
        from_file = f"llama_model_loader: failed to load model from {path}"
        try:
            return load_model(path)
        except FileNotFoundError as error:
            missing = f"failed to open GGUF file '{error.filename}' (No such file or directory)"
            said, why = [("E", f"gguf_init_from_file: {missing}")], from_file
        except BadModelError as error:
            is_header = str(error).startswith("gguf_init")
            said = [("E", str(error))] if is_header else []
            why = from_file if is_header else str(error)
        end = ("E", f"llama_model_load: error loading model: {why}")
        return self.ending.fail([*said, end, *failure_text.load_end(path)])

    def settle(self, model: Model) -> dict[str, Any]:
        """Parameters after faults and the runtime's own fit."""
        params: dict[str, Any] = self.params
        context, ubatch = self.faults.get("context-reduced"), self.faults.get("ubatch-reduced")
        shown = [self.machine.devices[i].name for i in self.shown()]
        if len(shown) < len(self.machine.devices) and "devices" not in params:
            params = {**params, "devices": ",".join(shown) or "none"}
        if params.get("fit", "on") == "on":
            log = self.log
            log.trace_line("cmn  common_init_: fitting params to device memory ...")
            free = [self.memory.free_mib(i) for i in range(len(self.machine.devices))]
            margin = float(str(params.get("fit_target", 1024)).split(",")[0])
            try:
                fit = own_fit.fit(params, self.machine, model, free, margin)
            except RefusedError as error:
                log.error_line(own_fit.FAILED)
                log.error_line(f"llama_init_from_model: {error}")
                return params
            for level, text in fit.log:
                log.say("T" if level == "I" else level, text)
            params = fit.params
        if context:
            params = {**params, "context": int(context.number(4096))}
        if ubatch:
            params = {**params, "ubatch": int(ubatch.number(256))}
        return params

    def pause(self, launch: Launch) -> None:
        """Let the loading take its time."""
        if self.faults.get("hang-load"):
            time.sleep(self.faults.get("hang-load").number(3600))
        slow = self.faults.get("slow-load")
        seconds = launch.load_s()
        time.sleep(seconds * self.scale + (slow.number(5) if slow else 0.0))
        self.log.advance(seconds * (1 - self.scale))

    def allocate(self, launch: Launch) -> None:
        """Take memory step by step, saying so as the real one does."""
        log, faults = self.log, self.faults
        host = launch.allocation.host
        stage = "load"
        unpinned = not host.is_mapped and not host.is_pinned and launch.settings.devices
        if (unpinned and not self.machine.is_unified) or faults.get("pinned-refused"):
            launch.is_pinned = False
            backend = self.machine.devices[0].backend
            self.ending.write(failure_text.unpinned(backend, host.weights_mib))
        self.early_failures(launch)
        for step in launch.load_steps():
            if step.stage == "context" and stage == "load":
                stage = "context"
                launch_log.loaded_tensors(log, launch)
                self.reject_line(launch)
                launch_log.context_lines(log, launch)
                self.ending.strike("context")
            self.take(launch, step)
            if step.buffer == "cache" and step.place == (launch.settings.uploader or 0):
                launch_log.expert_cache_lines(log, launch)
            if step.buffer == "kv":
                launch_log.cache_line(log, launch, step.place)
                if step.place is None:
                    launch_log.cache_total(log, launch)
                    launch_log.reserving(log, launch)
                    self.harmless(launch)
        launch.settle()
        launch_log.compute_lines(log, launch)
        spill = faults.get("spill")
        if spill:
            self.memory.spill(launch.settings.devices[0], spill.number(512))

    def early_failures(self, launch: Launch) -> None:
        """Faults of host memory while weights are read."""
        mib = launch.allocation.host.weights_mib
        for name, where in (("host-oom", "host"), ("pinned-fatal", "pinned")):
            if self.faults.get(name):
                failure = Failure("out_of_memory", "load", where, "weights", requested_mib=mib)
                self.ending.refuse(launch, StoppedError(failure))

    def reject_line(self, launch: Launch) -> None:
        """A combination that only the context refuses."""
        fault = self.faults.get("reject-line")
        if fault:
            what = fault.value or "quantized V cache requires flash_attn to be enabled"
            self.ending.fail(
                [
                    ("E", f"llama_init_from_model: {what}"),
                    *failure_text.context_tail(self.ending.path),
                ]
            )

    def harmless(self, launch: Launch) -> None:
        """Lines of an allocation that is tried again, smaller."""
        if self.faults.get("retry-pipeline") and launch.settings.devices:
            self._refused_once(launch, launch.allocation.devices[0].compute_mib * 3)
            self.log.say("W", _RETRYING)

    def _refused_once(self, launch: Launch, mib: float) -> None:
        index = launch.settings.devices[0]
        device = self.machine.devices[index]
        buffer = buffer_name(self.machine, index)
        lines = failure_text.refused_compute(device.backend, device.name, 0, buffer, mib)
        self.ending.write(lines)

    def take(self, launch: Launch, step: Step) -> None:
        """One allocation, refused where memory or a fault says so."""
        for name, (stage, buffer) in _FORCED.items():
            fault = self.faults.get(name)
            if not fault or (step.stage, step.buffer) != (stage, buffer) or step.place is None:
                continue
            device = self.machine.devices[launch.settings.devices[step.place]].name
            target = fault.device or fault.value
            if target and target != device:
                continue
            mib = step.mib or 64.0
            failure = Failure("out_of_memory", stage, "device", buffer, device, mib)
            self.ending.refuse(launch, StoppedError(failure))
        try:
            had_pipeline = launch.allocation.has_pipeline
            launch.take(step)
            if had_pipeline and launch.lost_pipeline:
                self._refused_once(launch, step.mib)
                self.log.say("W", _RETRYING)
        except StoppedError as stopped:
            self.ending.refuse(launch, stopped)

    def warm_up(self, launch: Launch) -> None:
        """The empty run before the server is ready."""
        log = self.log
        log.say(
            "I", f"cmn          init: llama threadpool init, n_threads = {launch.settings.threads}"
        )
        log.trace_line(
            "cmn  common_init_: warming up the model with an empty run - please wait ... "
            "(--no-warmup to disable)"
        )
        self.ending.strike("warmup")

    def listen(self, http: HttpServer, launch: Launch) -> None:
        """Open the endpoints."""
        log, traits = self.log, self.traits
        other = self.line.other
        launch_log.ready_lines(
            log,
            launch,
            int(other.get("--cache-ram", 8192)),
            int(other.get("--ctx-checkpoints", 32)),
        )
        kinds = (launch.settings.cache_type_k, launch.settings.cache_type_v)
        replies = Replies(
            launch.model.n_vocab,
            max(traits.kv_text_change.get(kind, 0.0) for kind in kinds),
            max(traits.kv_logprob_error.get(kind, 0.0) for kind in kinds),
        )
        _, build, commit = startup_log.VERSIONS[traits.log_format]
        seed = int(os.environ.get("FAKE_SEED", "0"))
        shown = repr(sorted(self.params.items()))
        scatter = Scatter(
            self.machine,
            seed,
            self.memory.launch,
            shown,
            min((self.memory.free_mib(i) for i in launch.settings.devices), default=1e9),
        )
        completer = Completer(
            launch, log, self.faults, replies, lambda: scatter,
            time_scale=self.scale, path=self.path,
            reuses_prompts=bool(self.params.get("cache_prompt", True)),
            die=lambda _, stage: self.compute(launch, stage),
        )  # fmt: skip
        endpoints = Endpoints(
            completer, self.faults, f"b{build}-{commit}",
            has_metrics="--metrics" in other,
            end=lambda stopped: self.ending.run_out(launch, stopped),
        )  # fmt: skip
        http.handler = endpoints.handle
        log.say("I", "srv  llama_server: model loaded")
        log.say("I", f"srv  llama_server: listening on {self.address}")
        log.trace_line("srv  update_slots: all slots are idle")

    def compute(self, launch: Launch, stage: str) -> None:
        """Faults that strike as a request is computed."""
        faults, ending = self.faults, self.ending
        ending.strike(stage)
        index = launch.settings.devices[0] if launch.settings.devices else 0
        device = self.machine.devices[index].name
        for name, (when, reason) in _RUN_TIME.items():
            if faults.get(name) and stage == when:
                raise StoppedError(
                    Failure(
                        "out_of_memory",
                        stage,
                        "device",
                        "pool",
                        faults.get(name).device or device,
                        148.0,
                        reason=reason,
                    )
                )
        if faults.get("device-lost") and stage == "prompt":
            ending.lose_device(launch)
            raise StoppedError(Failure("out_of_memory", stage, reason="decode"))
        if stage == "generate" and launch.refused_slot_mib and not self._has_told_of_slots:
            self._has_told_of_slots = True
            index = launch.settings.devices[launch.settings.uploader or 0]
            place = ending.ordinal(launch, index)
            ending.write(failure_text.refused_slot(launch.refused_slot_mib, place))
        if faults.get("retry-prefetch") and stage == "prompt":
            self.ending.write(failure_text.refused_slot(420.0))

    # ---- the end

    def wait(self, launch: Launch) -> None:
        """Serve until a signal comes, then end in order."""
        wakes, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        while not self.is_stopping:
            wakes.recv(1)
        self.ending.strike("stop")
        slow = self.faults.get("slow-stop")
        if slow:
            time.sleep(slow.number(3))
        self.ending.finish(launch)

    def on_signal(self, number: int, frame: object) -> None:
        """The first signal asks for an orderly end, the second forces one."""
        if self.faults.get("ignore-term") and number == signal.SIGTERM:
            return
        if self.is_stopping:
            self.log.raw("Received second interrupt, terminating immediately.\n")
            self.ending.exit(1)
        self.is_stopping = True
