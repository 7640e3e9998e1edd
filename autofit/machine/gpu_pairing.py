"""The physical GPU of each device of a runtime.

A wrong counter is worse than none, so a device that could be one of several GPUs gets none. The
PCI address decides; newer runtimes print it in their log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autofit.machine.gpu import Gpu, Vendor, normal_pci_id
from autofit.machine.kernel_files import to_number
from autofit.trial.device import Device, backend_of

_SIZE_TOLERANCE = 0.03  # a driver reserves a little of a card's memory
_LARGEST_SLICE = 0.75  # MIG gives a device at most half of a card's memory, or all of it
_VENDOR_WORDS: Mapping[Vendor, tuple[str, ...]] = {
    "nvidia": ("nvidia", "geforce", "tesla", "quadro"),
    "amd": ("amd", "radeon", "radv", "gfx"),
    "intel": ("intel", "arc"),
}


def pair_gpus(
    devices: Sequence[Device],
    gpus: Sequence[Gpu],
    *,
    env: Mapping[str, str],
    pci_ids: Mapping[str, str] | None = None,
    rocm_order: Sequence[str] = (),
) -> dict[str, Gpu]:
    """Map each device of a runtime to its physical GPU; leave out devices that could be several.

    `env` is the environment of the runtime. `pci_ids` are PCI addresses by device name, if the
    runtime's log has them. `rocm_order` are the addresses of AMD GPUs in ROCm's order.
    """
    by_pci = {gpu.pci_id: gpu for gpu in gpus}
    found: dict[str, Gpu] = {}
    for device in devices:
        if pci_ids and device.name in pci_ids:
            gpu = by_pci.get(normal_pci_id(pci_ids[device.name]))
            gpu = None if gpu is not None and _is_slice(device, gpu) else gpu
        elif device.name.startswith("CUDA"):
            gpu = _cuda(device, devices, [g for g in gpus if g.vendor == "nvidia"], env)
        elif device.name.startswith("ROCm"):
            gpu = _rocm(device, [g for g in gpus if g.vendor == "amd"], env, rocm_order)
        else:
            gpu = _only_match(device, devices, gpus)
        if gpu is not None:
            found[device.name] = gpu
    return found


def _cuda(
    device: Device, devices: Sequence[Device], gpus: Sequence[Gpu], env: Mapping[str, str]
) -> Gpu | None:
    """Apply CUDA's rules: CUDA_VISIBLE_DEVICES lists UUIDs, or numbers in CUDA_DEVICE_ORDER.

    The default order is "fastest first", which is bus order for equal cards.
    """
    index = _index(device.name)
    if index is None or "GGML_CUDA_DEVICES" in env:
        return _only_match(device, devices, gpus)
    visible = _parse_visible(env.get("CUDA_VISIBLE_DEVICES"))
    entry = str(index) if visible is None else visible[index] if index < len(visible) else ""
    number = to_number(entry)
    if number is None:
        matching = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1:
        return gpus[number] if number < len(gpus) else None
    equal = [gpu for gpu in gpus if gpu.name == device.description]
    same_name = [
        other.name
        for other in devices
        if other.name.startswith("CUDA") and other.description == device.description
    ]
    if visible is None and len(equal) == len(same_name):
        return equal[sorted(same_name, key=lambda name: _index(name) or 0).index(device.name)]
    return equal[0] if len(equal) == 1 else None


def _rocm(
    device: Device, gpus: Sequence[Gpu], env: Mapping[str, str], order: Sequence[str]
) -> Gpu | None:
    """Apply ROCm's rules: ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES among those."""
    by_pci = {gpu.pci_id: gpu for gpu in gpus}
    ordered = [by_pci[pci_id] for pci_id in order if pci_id in by_pci]
    hip = env.get("HIP_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    for choice in (env.get("ROCR_VISIBLE_DEVICES"), hip):
        entries = _parse_visible(choice)
        if entries is None:
            continue
        numbers = [to_number(entry) for entry in entries]
        if not all(number is not None and number < len(ordered) for number in numbers):
            return None
        ordered = [ordered[number] for number in numbers if number is not None]
    index = _index(device.name)
    return ordered[index] if index is not None and index < len(ordered) else None


def _only_match(device: Device, devices: Sequence[Device], gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the only GPU that a device can be, if no other device can be that GPU."""
    candidates = [gpu for gpu in gpus if _may_be(device, gpu)]
    if len(candidates) != 1:
        return None
    backend = backend_of(device.name)
    rivals = [
        other.name
        for other in devices
        if other.name.startswith(backend) and _may_be(other, candidates[0])
    ]
    return candidates[0] if rivals == [device.name] else None


def _is_slice(device: Device, gpu: Gpu) -> bool:
    """Return whether a device is only a part of a GPU; the GPU's counters cover all parts."""
    if gpu.total_mib is None or device.is_unified:
        return False
    return device.total_mib < _LARGEST_SLICE * gpu.total_mib


def _may_be(device: Device, gpu: Gpu) -> bool:
    text = device.description.lower()
    if gpu.name:
        return gpu.name.lower() in text
    if not any(word in text for word in _VENDOR_WORDS[gpu.vendor]):
        return False
    if gpu.total_mib is None or device.is_unified:
        return True
    return abs(gpu.total_mib - device.total_mib) <= _SIZE_TOLERANCE * gpu.total_mib


def _parse_visible(text: str | None) -> list[str] | None:
    """Return the listed visible devices up to the first invalid one, as CUDA does."""
    if text is None:
        return None
    entries = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry == "-1":
            break
        entries.append(entry)
    return entries


def _index(name: str) -> int | None:
    digits = name.removeprefix(backend_of(name))
    return int(digits) if digits else None
