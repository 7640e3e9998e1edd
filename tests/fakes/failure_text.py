"""The lines that each backend writes when something fails, and the end of the process.

Sources: llama.cpp's own messages at b10434 and b11434. A line is (level, text); the level
RAW stands for text that goes to stderr past the log.
"""

from __future__ import annotations

import signal

RAW = "RAW"
Line = tuple[str, str]
_MIB = 1024 * 1024
_PREFIX = {"CUDA": "CUDA", "ROCm": "ROCm"}


def refused_device(
    backend: str, name: str, index: int, buffer: str, mib: float, *, is_old: bool
) -> list[Line]:
    """The backend's own words when it cannot allocate a buffer, and the generic line after."""
    nbytes = int(mib * _MIB)
    if backend in _PREFIX:
        lines = [
            ("E", ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating "
             f"{mib:.2f} MiB on device {index}: cudaMalloc failed: out of memory"))
        ]  # fmt: skip
    elif backend == "Vulkan":
        size = min(nbytes, 1024 * _MIB)  # buffers are cut into chunks of at most 1 GiB
        nbytes = size
        lines = [
            (RAW, f"ggml_vulkan: Device memory allocation of size {size} failed."),
            (RAW, "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
        ]
    elif backend == "SYCL":
        lines = [
            (
                RAW,
                (
                    f"ggml_backend_sycl_buffer_type_alloc_buffer: can't allocate {nbytes} "
                    "Bytes of memory on device"
                ),
            )
        ]
    elif backend == "Metal":
        lines = [
            (
                "E",
                (
                    "ggml_metal_buffer_init: error: failed to allocate buffer, size = "
                    f"{mib:.2f} MiB"
                ),
            )
        ]
    else:
        lines = []
    said = "alloc_tensor_range" if is_old else "ggml_backend_buft_alloc_buffer_n_default"
    return [*lines, ("E", f"{said}: failed to allocate {buffer} buffer of size {nbytes}")]


def refused_compute(backend: str, name: str, index: int, buffer: str, mib: float) -> list[Line]:
    """The same for a compute buffer."""
    lines = refused_device(backend, name, index, buffer, mib, is_old=False)[:-1]
    nbytes = int(mib * _MIB)
    return [
        *lines,
        ("E", f"ggml_gallocr_reserve_n_impl: failed to allocate {buffer} buffer of size {nbytes}"),
        ("E", "graph_reserve: failed to allocate compute buffers"),
    ]


def refused_host(mib: float, *, is_old: bool) -> list[Line]:
    """Plain host memory was refused."""
    said = "alloc_tensor_range" if is_old else "ggml_backend_buft_alloc_buffer_n_default"
    nbytes = int(mib * _MIB)
    return [
        ("E", f"ggml_aligned_malloc: insufficient memory (attempted to allocate {mib:6.2f} MB)"),
        ("E", ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size "
         f"{nbytes}")),
        ("E", f"{said}: failed to allocate CPU buffer of size {nbytes}"),
    ]  # fmt: skip


def unpinned(backend: str, mib: float) -> list[Line]:
    """Page-locking was refused; the runtime goes on with pageable memory."""
    if backend == "Vulkan":
        return [
            (
                RAW,
                (
                    "ggml_vulkan: Failed to allocate pinned memory "
                    "(vk::Device::allocateMemory: ErrorOutOfHostMemory)"
                ),
            )
        ]
    return [
        (
            "W",
            (
                f"ggml_cuda_host_malloc: failed to allocate {mib:.2f} MiB of pinned memory: "
                "out of memory"
            ),
        )
    ]


def run_time_loss(backend: str, index: int, mib: float, *, by_cublas: bool) -> list[Line]:
    """The last words of a process that runs out of device memory while it computes."""
    if backend in _PREFIX:
        prefix = _PREFIX[backend]
        if by_cublas:
            what = "the resource allocation failed"
            where = "cublas_handle at ggml/src/ggml-cuda/common.cuh:1421"
            call = "cublasCreate_v2(&cublas_handles[device][curr_stream_no])"
        else:
            what = "out of memory"
            where = "alloc at ggml/src/ggml-cuda/ggml-cuda.cu:478"
            call = "cuMemCreate(&handle, reserve_size, &prop, 0)"
        return [
            ("E", f"{prefix} error: {what}"),
            ("E", f"  current device: {index}, in function {where}"),
            ("E", f"  {call}"),
            (RAW, f"ggml/src/ggml-cuda/ggml-cuda.cu:102: {prefix} error"),
        ]
    size = int(mib * _MIB)
    if backend == "Vulkan":
        return [
            (RAW, f"ggml_vulkan: Device memory allocation of size {size} failed."),
            (RAW, "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
            (RAW, "terminate called after throwing an instance of 'vk::OutOfDeviceMemoryError'"),
            (RAW, "  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
        ]
    if backend == "SYCL":
        return [
            (RAW, ("Native API failed. Native API returns: 39 "
             "(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)")),
            (RAW, "Exception caught at file:ggml/src/ggml-sycl/ggml-sycl.cpp, line:4021"),
            (RAW, "ggml/src/ggml-sycl/../ggml-sycl/common.hpp:106: SYCL error"),
        ]  # fmt: skip
    if backend == "RPC":
        return [
            ("E", "send failed (bytes_sent=-1, size_to_send=8388608)"),
            (RAW, ("ggml/src/ggml-rpc/ggml-rpc.cpp:391: Remote RPC server crashed or returned "
             "malformed response")),
        ]  # fmt: skip
    refused = f"ggml_aligned_malloc: insufficient memory (attempted to allocate {mib:.2f} MB)"
    return [
        ("E", refused),
        (RAW, "ggml/src/ggml-cpu/ggml-cpu.c:2841: GGML_ASSERT(ctx->wdata) failed"),
    ]


def refused_slot(mib: float, index: int = 0) -> list[Line]:
    """A prefetch slot was refused; the runtime goes on with fewer, and says no more."""
    words = f"allocating {mib:.2f} MiB on device {index}: cudaMalloc failed: out of memory"
    return [("E", f"ggml_backend_cuda_buffer_type_alloc_buffer: {words}")]


def slot_loss(mib: float, index: int) -> list[Line]:
    """The last words of a build that cannot go on without its prefetch slots."""
    last = "ggml/src/ggml-backend.cpp:1617: GGML_ASSERT(slot->buffer != NULL) failed"
    return [*refused_slot(mib, index), (RAW, last)]


def metal_loss() -> list[Line]:
    """Metal goes on in an error state; requests fail from here on."""
    return [
        ("E", "ggml_metal_synchronize: error: command buffer 0 failed with status 5"),
        ("E", "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
        ("E", "graph_compute: ggml_backend_sched_graph_compute_async failed with error -1"),
        ("E", "process_ubatch: failed to compute graph, compute status: -1"),
        ("E", "decode: failed to decode, ret = -3"),
    ]  # fmt: skip


def device_lost(backend: str, name: str, *, is_old: bool) -> tuple[list[Line], bool]:
    """The device is lost for another reason than memory; and whether the process aborts."""
    if backend == "Vulkan":
        lines = [
            (RAW, ("radv/amdgpu: The CS has been cancelled because the context is lost. This "
             "context is guilty of a hard recovery.")),
            (RAW, f"ggml_vulkan: device lost on {name}"),
        ]  # fmt: skip
        if is_old:
            lines.append(
                (RAW, "terminate called after throwing an instance of 'vk::DeviceLostError'")
            )
            lines.append((RAW, "  what():  vk::Queue::submit: ErrorDeviceLost"))
        return lines, is_old
    if backend in _PREFIX:
        prefix = _PREFIX[backend]
        return [
            ("E", f"{prefix} error: an illegal memory access was encountered"),
            (
                "E",
                (
                    "  current device: 0, in function ggml_backend_cuda_synchronize at "
                    "ggml/src/ggml-cuda/ggml-cuda.cu:2979"
                ),
            ),
            ("E", "  cudaStreamSynchronize(cuda_ctx->stream())"),
            (RAW, f"ggml/src/ggml-cuda/ggml-cuda.cu:102: {prefix} error"),
        ], True
    return run_time_loss(backend, 0, 1.0, by_cublas=False), True


def weights_end(model: str, buffer: str) -> list[Line]:
    """The common lines after weights could not be allocated."""
    return [
        ("E", f"llama_model_load: error loading model: unable to allocate {buffer} buffer"),
        *load_end(model),
    ]


def load_end(model: str) -> list[Line]:
    """The common lines after a model could not be loaded."""
    return [
        ("E", "llama_model_load_from_file_impl: failed to load model"),
        ("E", f"cmn  common_init_: failed to load model '{model}'"),
        ("E", f"srv    load_model: failed to load model, '{model}'"),
        *final(),
    ]


def context_end(model: str, why: str) -> list[Line]:
    """The common lines after a context could not be made."""
    if why:
        lines = [("E", f"llama_init_from_model: failed to initialize the context: {why}")]
    else:
        lines = []
    return [*lines, *context_tail(model)]


def context_tail(model: str) -> list[Line]:
    """The lines that follow whatever kept the context from being made."""
    again = f"cmn  common_init_: failed to create context with model '{model}'"
    return [
        ("E", again),
        ("E", again),
        ("E", f"srv    load_model: failed to create_context with model '{model}'"),
        *final(),
    ]


def final(why: str = "model loading error") -> list[Line]:
    """Return the last lines of every failed start."""
    return [
        ("T", "srv    operator(): operator(): cleaning up before exit..."),
        ("E", f"srv  llama_server: exiting due to {why}"),
    ]


SIGNALS = {
    "killed": signal.SIGKILL,
    "segfault": signal.SIGSEGV,
    "illegal": signal.SIGILL,
    "abort": signal.SIGABRT,
    "bus": signal.SIGBUS,
}
