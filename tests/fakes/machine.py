"""A simulated machine: devices, host, oddities and noise, as plain data.

It knows neither models nor settings; `speed` and `allocation` say what follows from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

Backend = Literal["CUDA", "ROCm", "Vulkan", "SYCL", "Metal", "RPC"]
# hard: an allocation past the end fails. spill: it succeeds in host memory and everything
# gets slower (Windows drivers). unified: the device's memory is the host's.
Policy = Literal["hard", "spill", "unified"]


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Bandwidths are what programs reach, not what the data sheet says."""

    name: str
    description: str = "Fake Accelerator"
    backend: Backend = "CUDA"
    total_mib: float = 12288.0
    other_mib: float = 0.0  # held by other programs before anything of ours runs
    reserve_mib: float = 60.0  # what the driver never hands out
    context_mib: float = 450.0  # fixed cost of a process that opens the device
    link_gb_s: float = 24.0  # host to device, from pinned memory
    pageable_share: float = 0.55  # part of that reached from pageable or mapped memory
    readback_us: float = 60.0  # a layer whose experts the CPU computes stalls this long
    hop_us: float = 40.0  # handing a token's state to the next device
    prompt_tflops: float = 12.0  # large batches of quantized weights
    half_ubatch: float = 160.0  # tokens in a ubatch at which half of that is reached
    expert_prompt_share: float = 0.6  # part of it reached by routed experts
    expert_half_rows: float = 12.0  # tokens per expert at which half of *that* is reached
    memory_gb_s: float = 300.0
    expert_decode_share: float = 0.7  # part of it reached by routed experts, one token at a time
    layer_us: float = 25.0  # kernel launches of one layer
    pool_mib: float = 90.0  # run-time pools: handles, workspaces, at the first large batch
    pool_kib_per_token: float = 12.0  # ... and scratch that grows with the ubatch
    kv_loss: float = 1.0  # how much slower attention is over a quantized cache
    flash_share: float = 0.5  # part of the prompt speed that flash attention reaches
    has_flash_kernel: bool = True  # else `auto` is off, and `on` is computed by the processor
    capability: str = ""  # CUDA's compute capability, such as 6.1; printed where it is known
    pipeline_growth: float = 1.6  # growth of the compute buffer under pipeline parallelism
    endpoint: str = ""  # host:port of an RPC device; it is listed only when asked for


@dataclass(frozen=True, slots=True)
class Host:
    """CPU and system memory."""

    description: str = "Fake CPU"
    cores: int = 8
    logical: int = 16
    memory_gb_s: float = 45.0
    gflops_per_core: float = 28.0
    saturating_cores: float = 3.0  # cores after which memory bandwidth levels off
    beyond_cores_share: float = 0.93  # speed left with as many threads as logical CPUs
    crowding_cores: int = 0  # more threads than this compete for memory; 0 is never
    crowded_share: float = 1.0  # memory bandwidth left with a thread on every core
    efficiency_cores: int = 0  # of the cores; used only after all performance cores
    efficiency_share: float = 1.0  # speed of one; threads wait for the slowest
    sockets: int = 1  # each with its part of the cores and of the memory bandwidth
    unplaced_share: float = 1.0  # bandwidth of several sockets without --numa
    distributed_share: float = 1.0  # ... with --numa distribute
    collapse_threads: int = 0  # from this many threads on the CPU thrashes; 0 is never
    collapse_share: float = 0.12
    ram_mib: float = 65536.0
    other_mib: float = 5000.0
    pinned_mib: float = 60000.0  # more than this cannot be page-locked
    pinned_share: float = 1.0  # how fast the CPU reads what is page-locked (write-combined: slow)
    refuses: bool = False  # allocations past the end fail; else the kernel kills the process
    disk_gb_s: float = 2.5
    unpack_gb_s: float = 5.0  # copying weights that the page cache already holds


@dataclass(frozen=True, slots=True)
class Quirks:
    """Effects that a linear model of bytes and operations has no term for; neutral by default."""

    ubatch_knee: int = 0  # ubatches above this size compute slower
    knee_loss: float = 1.0
    ubatch_grain: int = 0  # ubatches that are no multiple of this do, too
    grain_loss: float = 1.0
    numa_mib: float = 0.0  # host weights beyond this lie on the far memory node
    numa_share: float = 1.0
    cached_mib: float = 0.0  # host weights read per token that the CPU's caches hold
    slow_kv: dict[str, float] = field(default_factory=dict)  # KV type to slow-down
    edge_mib: float = 0.0  # with less than this left on a device, generation slows down
    edge_loss: float = 1.0
    free_spill_mib: float = 0.0  # so much spill costs nothing
    spill_touch: float = 0.5  # part of the spilled bytes read per token or ubatch
    shared_link: bool = False  # all devices hang on the first one's link
    graph_layers: int = 0  # more host expert layers than this: no recorded graphs any more
    graph_loss_us: float = 0.0  # ... so that every layer costs this much more
    ripple_layers: int = 0  # speed goes up and down with this period in host expert layers
    ripple_share: float = 0.0
    device_sync_ms: float = 0.0  # what every device beyond the first costs per ubatch
    device_token_ms: float = 0.0  # ... and per generated token
    prefetch_link_share: float = 1.0  # link speed left while prefetching whole tensors
    mapped_decode_share: float = 1.0  # CPU speed on mapped weights
    wide_kv_ms: float = 0.0  # quantized KV: cost per ubatch and 1024 tokens of context
    throttle_layers: int = 0  # more expert layers than this on a device and it clocks down
    throttle_loss: float = 1.0

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of the effects at work here."""
        at_work = {
            "ubatch_knee": self.ubatch_knee > 0,
            "ubatch_grain": self.ubatch_grain > 0,
            "numa": self.numa_mib > 0,
            "cpu_cache": self.cached_mib > 0,
            "slow_kv": bool(self.slow_kv),
            "edge": self.edge_mib > 0,
            "free_spill": self.free_spill_mib > 0,
            "shared_link": self.shared_link,
            "graph_limit": self.graph_layers > 0,
            "ripple": self.ripple_layers > 0,
            "device_hurts": self.device_sync_ms > 0,
            "wide_kv": self.wide_kv_ms > 0,
            "throttle": self.throttle_layers > 0,
        }
        return tuple(name for name, is_here in at_work.items() if is_here)


@dataclass(frozen=True, slots=True)
class Noise:
    """The scatter of measurements: sigmas of log-normal factors, and what comes on top."""

    launch_prompt: float = 0.01
    launch_decode: float = 0.01
    within_prompt: float = 0.005
    within_decode: float = 0.005
    drift_share: float = 0.0  # slow swing over launches
    drift_launches: int = 12
    burst_probability: float = 0.0  # a request that another program slows down
    burst_share: float = 0.0
    first_prompt_share: float = 0.0  # the first request of a launch
    first_prompt_s: float = 0.0
    edge_launch: float = 0.0  # extra scatter between launches with little memory left


@dataclass(frozen=True, slots=True)
class RuntimeTraits:
    """The abilities of the runtime's build, and the accuracy of its own reports."""

    log_format: Literal["new", "old"] = "new"  # b11434 or b10434
    prefetch: Literal["", "env", "slots", "weights"] = ""
    prefetch_dies: bool = False  # where slots do not fit; else it goes on with fewer, or none
    has_moe_cache: bool = False
    has_load_mode: bool = True  # --load-mode; older builds have --no-mmap and --mlock only
    moe_cache_locality: float = 0.45  # hit rate = (cached share of host experts) ** locality
    keeps_pipeline: bool = False  # pipeline parallelism also with host experts
    fit_params_share: float = 1.0  # the no-load estimator's figure / the truth, compute buffers
    fit_params_mib: float = 0.0  # and a constant on top of its figure for each device
    kv_text_change: dict[str, float] = field(default_factory=dict)  # KV type to token changes
    kv_logprob_error: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything about one machine; `to_json` and `from_json` are inverse."""

    name: str
    devices: tuple[Device, ...]
    host: Host = Host()
    policy: Policy = "hard"
    quirks: Quirks = Quirks()
    noise: Noise = Noise()
    runtime: RuntimeTraits = RuntimeTraits()
    floor_drift_mib: float = 0.0  # other programs take so much more after every launch
    floor_drift_limit_mib: float = 0.0
    release_s: float = 0.0  # memory of a process that ended comes back this much later

    @property
    def is_unified(self) -> bool:
        """True if device memory is host memory."""
        return self.policy == "unified"

    @property
    def effects(self) -> tuple[str, ...]:
        """Effects at work that bytes, operations and fixed costs do not explain."""
        extra = []
        if any(d.expert_decode_share < 0.12 for d in self.devices) and not self.is_unified:
            extra.append("inverted_decode")
        if self.host.collapse_threads:
            extra.append("thread_collapse")
        if self.policy == "spill":
            extra.append("spill")
        return (*self.quirks.effects, *extra)

    def without_noise(self) -> Machine:
        """The same machine, measured without any scatter."""
        silent = Noise(launch_prompt=0, launch_decode=0, within_prompt=0, within_decode=0)
        return replace(self, noise=silent)

    def to_json(self) -> str:
        """The machine as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Machine:
        """The inverse of `to_json`.

        Raises:
            TypeError: a field is not known.
        """
        data = json.loads(text)
        return cls(
            **{
                **data,
                "devices": tuple(Device(**device) for device in data["devices"]),
                "host": Host(**data.get("host", {})),
                "quirks": Quirks(**data.get("quirks", {})),
                "noise": Noise(**data.get("noise", {})),
                "runtime": RuntimeTraits(**data.get("runtime", {})),
            }
        )
