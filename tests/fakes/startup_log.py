"""The lines llama-server prints from its start until it has read a model's header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fakes.log import Log
from fakes.machine import Device, Machine
from fakes.model import TYPES, Model
from fakes.settings import Settings

_CPU = "SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | LLAMAFILE = 1"
_HOST_BUFFERS = {
    "CUDA": "CUDA_Host",
    "ROCm": "ROCm_Host",
    "Vulkan": "Vulkan_Host",
    "SYCL": "SYCL_Host",
}
VERSIONS = {"new": ("0.6.0-dev", "11434", "5d2c8f1"), "old": ("0.1.0-dev", "10434", "7e4c0a9")}


def host_buffer(machine: Machine, settings: Settings, *, is_mapped: bool = False) -> str:
    """The buffer that weights in host memory lie in."""
    if is_mapped:
        return "CPU_Mapped"
    if not settings.devices:
        return "CPU"
    return _HOST_BUFFERS.get(machine.devices[settings.devices[0]].backend, "CPU")


def backend_banner(log: Log, machine: Machine, shown: Sequence[int]) -> None:
    """Log the first lines of a backend as it is loaded."""
    devices = [machine.devices[i] for i in shown if machine.devices[i].backend in ("CUDA", "ROCm")]
    if not devices:
        return
    kind = devices[0].backend
    total = int(sum(device.total_mib for device in devices))
    log.trace_line(
        f"ggml_cuda_init: found {len(devices)} {kind} devices (Total VRAM: {total} MiB):"
    )
    for line in capability_lines(devices):
        log.trace_line(line)


def capability_lines(devices: Sequence[Device]) -> list[str]:
    """Lines of the CUDA and ROCm backends about their devices."""
    return [
        f"  Device {number}: {device.description}, compute capability "
        f"{device.capability or '8.6'}, VMM: yes, VRAM: {int(device.total_mib)} MiB"
        for number, device in enumerate(d for d in devices if d.backend in ("CUDA", "ROCm"))
    ]


def device_rows(machine: Machine, shown: Sequence[int], free: Sequence[float]) -> list[str]:
    """`NAME: description (total MiB, free MiB free)`, opening each device first."""
    rows = []
    for index in shown:
        device = machine.devices[index]
        left = max(0, int(free[index] - device.context_mib))
        what = device.endpoint or device.description
        rows.append(f"{device.name}: {what} ({int(device.total_mib)} MiB, {left} MiB free)")
    return rows


def initialising(
    log: Log, machine: Machine, rows: Sequence[str], threads: tuple[int, int]
) -> None:
    """From `initializing ...` to the system's description."""
    _, build, commit = VERSIONS[machine.runtime.log_format]
    log.say("I", "srv  llama_server: initializing ...")
    head = "cmn  common_param: "
    log.trace_line(
        f"{head}common_params_print_info: build {build} ({commit}) with GNU 13.3.0 for "
        "Linux x86_64"
    )
    log.say(
        "I",
        f"{head}common_params_print_info: verbosity = {log.verbosity} (adjust with the "
        "`-lv N` CLI arg)",
    )
    log.trace_line(f"{head}device_info:")
    for row in rows:
        name, _, rest = row.partition(": ")
        log.trace_line(f"{head}  - {name:<7} : {rest}")
    host = machine.host
    ram = int(host.ram_mib)
    log.trace_line(f"{head}  - CPU     : {host.description} ({ram} MiB, {ram} MiB free)")
    log.trace_line(
        f"{head}system_info: n_threads = {threads[0]} (n_threads_batch = {threads[1]}) / "
        f"{host.logical} | CPU : {_CPU} | OPENMP = 1 | REPACK = 1 | "
    )


def http_lines(log: Log, machine: Machine, *, is_parallel_auto: bool) -> None:
    """The HTTP server's own lines, before the socket is bound."""
    if is_parallel_auto:
        log.trace_line(
            "srv  llama_server: n_parallel is set to auto, using n_parallel = 4 and "
            "kv_unified = true"
        )
    log.trace_line(
        f"srv          init: using {max(5, machine.host.logical - 1)} threads for HTTP server"
    )
    link = "https://github.com/ggml-org/llama.cpp/pull/25655"
    head = "srv  llama_server: "
    if machine.runtime.log_format == "new":
        log.say("W", f"{head}security: no API key is set and CORS allows all origins (see {link})")
        return
    log.say("W", f"{head}-----------------")
    log.say("W", f"{head}CORS is set to allow all origins ('*') and no API key is set")
    log.say("W", f"{head}this can be a security risk (cross-origin attacks)")
    log.say("W", f"{head}more info: {link}")
    log.say("W", f"{head}-----------------")
    log.trace_line("srv         start: binding port with default address family")


def model_header(log: Log, model: Model, path: str) -> None:
    """The dump of the file's metadata and the tensor types."""
    name = path
    count, tensors = len(model.metadata), len(model.tensors)
    log.trace_line(
        f"llama_model_loader: loaded meta data with {count} key-value pairs and {tensors} tensors "
        f"from {name} (version GGUF V3 (latest))"
    )
    note = "Note: KV overrides do not apply in this output."
    log.trace_line(f"llama_model_loader: Dumping metadata keys/values. {note}")
    for number, (key, value) in enumerate(model.metadata.items()):
        kind, shown = _shown(value)
        log.trace_line(f"llama_model_loader: - kv {number:3d}: {key:>42} {kind:<16} = {shown}")
    kinds: dict[int, int] = {}
    for tensor in model.tensors:
        kinds[tensor.type_id] = kinds.get(tensor.type_id, 0) + 1
    for kind_id, number in sorted(kinds.items()):
        log.trace_line(f"llama_model_loader: - type {TYPES[kind_id][0]:>4}: {number:4d} tensors")
    size = model.total_bytes / 1024**3
    log.trace_line("print_info: file format = GGUF V3 (latest)")
    log.trace_line("print_info: file type   = Q4_K - Medium")
    log.trace_line(
        f"print_info: file size   = {size:.2f} GiB "
        f"({model.total_bytes * 8 / model.elements:.2f} BPW) "
    )


def _shown(value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return "bool", str(value).lower()
    if isinstance(value, int):
        return "u32", str(value)
    if isinstance(value, float):
        return "f32", f"{value:.6f}"
    if isinstance(value, str):
        return "str", value
    if value is None:
        return "arr", "..."
    return f"arr[{len(value)}]", str(list(value)[:6])[:60] + "..."


def model_info(log: Log, model: Model) -> None:
    """The vocabulary and the hyperparameters."""
    for text in (
        "load: 0 unused tokens",
        "load: printing all EOG tokens:",
        f"load:   - {model.n_vocab - 1} ('<|im_end|>')",
        "load: special tokens cache size = 2",
        "load: token to piece cache size = 0.2377 MB",
    ):
        log.trace_line(text)
    for key, value in (
        ("arch", model.architecture),
        ("vocab_only", 0),
        ("no_alloc", 0),
        ("n_ctx_train", model.context_train),
        ("n_embd", model.n_embd),
        ("n_layer", model.n_layer),
        ("n_layer_all", model.n_layer),
        ("n_head", model.n_head),
        ("n_head_kv", model.n_head_kv),
        ("n_swa", model.n_swa),
        ("n_embd_head_k", model.head_k),
        ("n_embd_head_v", model.head_v),
        ("n_expert", model.n_expert),
        ("n_expert_used", model.n_used),
        ("model type", "?B"),
        ("model params", f"{model.elements / 1e9:.2f} B"),
        ("general.name", model.name),
        ("n_ff_exp", model.n_ff_expert),
        ("vocab type", "BPE"),
        ("n_vocab", model.n_vocab),
    ):
        log.trace_line(f"print_info: {key:<21} = {value}")
