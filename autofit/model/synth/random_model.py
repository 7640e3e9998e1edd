"""A model of random weights that llama.cpp loads and answers with.

Its answers make no sense, but it takes the memory and the time of a real model of the same
architecture and sizes.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autofit.errors import AutofitError, UsageError
from autofit.model.gguf.block_type import BlockType, find_block_type
from autofit.model.gguf.header_writer import NewTensor, Value, encode_header
from autofit.model.synth.architectures import (
    ARCHITECTURES,
    DENSE,
    DENSE_NAME,
    Architecture,
    Row,
    named_sizes,
)
from autofit.model.synth.vocabulary import (
    LARGEST_VOCABULARY,
    SMALLEST_VOCABULARY,
    Vocabulary,
    build_vocabulary,
)
from autofit.units import MIB

if TYPE_CHECKING:
    from autofit.model.synth.random_weights import RandomBlocks

WEIGHT_TYPES = ("f16", "q8_0", "q4_0", "q4_k", "q6_k")
_F32 = BlockType(0, "f32", 1, 4)
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_LARGEST_SIZE = (1 << 31) - 1  # sizes in the file have 32 bits
_ARCH_WITHOUT_EXPERTS = "qwen3moe"  # which can be dense too
# The lengths of rows that must be whole blocks, with the options that give them.
_ROW_OPTIONS = {"embd": "--embd", "ff": "--ff", "query": "--heads x --head-dim"}
# The runtime rotates pairs of elements of this part of a head: what --head-dim must be a
# multiple of.
_HEAD_STEPS = {"head": 2, "half_head": 4, "quarter_head": 8}
_BIAS_DEVIATION = 0.1
_CONSTANTS = {"one": 1.0, "minus_one": -1.0}


@dataclass(frozen=True, slots=True)
class SynthSpec:
    """The sizes of a model, as in llama.cpp: `embd` is its width, `ff` that of one expert.

    `arch` is a name in `ARCHITECTURES`; with `experts` 0 a qwen3moe becomes a dense qwen3.
    `layers` does not count a block for multi-token prediction. `type` is the type of all matrices
    with two exceptions: experts of some architectures have their own type, and embedding and
    output have `embd_type`. With `header_only` all weights are a hole in the file, which reads as
    zeros and takes almost no disk.
    """

    arch: str = "qwen3moe"
    layers: int = 8
    experts: int = 32
    used: int = 4
    embd: int = 512
    ff: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    vocab: int = 8192
    ctx: int = 32768
    type: str = "q4_k"
    embd_type: str = "q8_0"
    seed: int = 0
    header_only: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the data of all tensors."""
        return sum(weights.tensor.padded_bytes for weights in _weights(self))

    @property
    def file_arch(self) -> str:
        """The architecture that the file names."""
        return self.arch if self.experts else DENSE_NAME

    @property
    def architecture(self) -> Architecture:
        """Its tensors and metadata."""
        return ARCHITECTURES[self.arch] if self.experts else DENSE


def write_model(spec: SynthSpec, path: Path) -> None:
    """Write a model; it replaces an existing file, and an error leaves no partial file.

    Raises:
        UsageError: sizes that do not match, or a path that cannot be written.
        AutofitError: the disk is full.
    """
    check_spec(spec)
    _check_path(spec, path)
    vocabulary = build_vocabulary(spec.vocab)
    weights = list(_weights(spec))
    header = encode_header(_metadata(spec, vocabulary), [one.tensor for one in weights])
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as file:
            file.write(header)
            if spec.header_only:
                file.truncate(len(header) + spec.size_bytes)
            else:
                file.writelines(_generate_data(spec, weights, vocabulary.hidden))
        partial.replace(path)
    except OSError as error:
        raise AutofitError(
            f"cannot write {path}: {error.strerror}",
            f"it needs {spec.size_bytes / MIB:.0f} MiB: free some space or choose another folder",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def check_spec(spec: SynthSpec) -> None:
    """Check that the sizes match each other and the limits of llama.cpp.

    Raises:
        UsageError: all faults together.
    """
    faults = [*_faults(spec)]
    if faults:
        raise UsageError("\n".join(faults), "`autofit synth --help` lists the sizes")


def _faults(spec: SynthSpec) -> Iterator[str]:
    if spec.arch not in ARCHITECTURES:
        yield f"--arch {spec.arch}: must be one of {', '.join(ARCHITECTURES)}"
        return
    ranges = [*_range_faults(spec)]
    if ranges:  # the other checks need positive numbers
        yield ranges[0]
        return
    if spec.layers > _MAX_LAYERS:
        yield f"--layers {spec.layers}: must be at most {_MAX_LAYERS}, the limit of llama.cpp"
    if spec.experts and not 1 <= spec.used <= spec.experts:
        yield f"--used {spec.used}: must be 1 to {spec.experts}, the number of experts"
    if not spec.experts and spec.arch != _ARCH_WITHOUT_EXPERTS:
        yield f"--experts 0: must be at least 1 with --arch {spec.arch}"
    if spec.heads % spec.kv_heads:
        yield f"--heads {spec.heads}: must be a multiple of --kv-heads {spec.kv_heads}"
    step = _HEAD_STEPS[spec.architecture.sizes["rope.dimension_count"]]
    if spec.head_dim % step:
        yield f"--head-dim {spec.head_dim}: must be a multiple of {step}"
    if not SMALLEST_VOCABULARY <= spec.vocab <= LARGEST_VOCABULARY:
        yield f"--vocab {spec.vocab}: must be {SMALLEST_VOCABULARY} to {LARGEST_VOCABULARY}"
    if not 0 <= spec.seed < 1 << 64:
        yield f"--seed {spec.seed}: must be 0 to 2^64 - 1"
    yield from _type_faults(spec)


def _range_faults(spec: SynthSpec) -> Iterator[str]:
    for name in ("layers", "embd", "ff", "heads", "kv_heads", "head_dim", "ctx", "experts"):
        size, least = getattr(spec, name), 0 if name == "experts" else 1
        if not least <= size <= _LARGEST_SIZE:
            yield f"--{name.replace('_', '-')} {size}: must be {least} to {_LARGEST_SIZE}"
    if spec.experts and spec.ff * spec.used > _LARGEST_SIZE:
        yield f"--ff {spec.ff} x --used {spec.used}: must be at most {_LARGEST_SIZE}"


def _type_faults(spec: SynthSpec) -> Iterator[str]:
    faulty = [
        f"{option} {name}: must be one of {', '.join(WEIGHT_TYPES)}"
        for option, name in (("--type", spec.type), ("--embd-type", spec.embd_type))
        if name.lower() not in WEIGHT_TYPES
    ]
    if faulty:
        yield from faulty
        return
    sizes = named_sizes(spec)
    rows = [
        (row.shape[0], _block_type(spec, row, sizes))
        for block in range(spec.layers)
        for row in spec.architecture.rows(block, spec.layers)
        if row.kind in ("matrix", "expert")
    ]
    rows.append(("embd", _find_type(spec.embd_type)))
    for size, block_type in dict.fromkeys(rows):
        option = _ROW_OPTIONS.get(size)
        if option and sizes[size] % block_type.elements:
            yield (
                f"{option} {sizes[size]}: must be a multiple of {block_type.elements}, "
                f"the block of {block_type.name}"
            )


def _check_path(spec: SynthSpec, path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path}: is a folder", "give the name of a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a regular file", "give the name of a new file")
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", "create it first, or choose another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: cannot be written to", "choose another folder")
    free = shutil.disk_usage(folder).free
    if not spec.header_only and spec.size_bytes > free:
        raise AutofitError(
            f"cannot write {path}: it needs {spec.size_bytes / MIB:.0f} MiB, "
            f"{free / MIB:.0f} MiB are free",
            "free some space, choose another folder or smaller sizes",
        )


def _metadata(spec: SynthSpec, vocabulary: Vocabulary) -> Mapping[str, Value]:
    name, architecture = spec.file_arch, spec.architecture
    sizes = named_sizes(spec)
    keys: dict[str, Value] = {
        **{key: sizes[size] for key, size in architecture.sizes.items()},
        **architecture.constants,
        "block_count": _block_count(spec),
    }
    return {
        "general.architecture": name,
        "general.name": f"autofit synth {name} of random weights",
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        # An empty list has no kind, and llama.cpp requires a list of strings.
        "tokenizer.ggml.merges": vocabulary.merges or ("e r",),
        "tokenizer.ggml.bos_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.eos_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.padding_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.add_bos_token": False,
    }


@dataclass(frozen=True, slots=True)
class _Weights:
    """A tensor with the standard deviation of its numbers, or 0 if all are `constant`.

    The deviation of a matrix is 1 / sqrt(length of a row), so that its product is as large as
    its input. The output has three times that, so that some tokens are more likely than others.
    """

    tensor: NewTensor
    deviation: float = 0.0
    constant: float = 0.0


def _block_count(spec: SynthSpec) -> int:
    return spec.layers + bool(spec.architecture.prediction)


def _weights(spec: SynthSpec) -> Iterator[_Weights]:
    """Yield the tensors in file order."""
    sizes = named_sizes(spec)
    table = _find_type(spec.embd_type), (spec.embd, spec.vocab)
    yield _Weights(NewTensor("token_embd.weight", *table), spec.embd**-0.5)
    for index in range(_block_count(spec)):
        for row in spec.architecture.rows(index, spec.layers):
            shape = tuple(sizes[size] for size in row.shape)
            tensor = NewTensor(f"blk.{index}.{row.name}", _block_type(spec, row, sizes), shape)
            if row.kind in _CONSTANTS:
                yield _Weights(tensor, constant=_CONSTANTS[row.kind])
            else:
                is_bias = row.kind == "bias"
                yield _Weights(tensor, _BIAS_DEVIATION if is_bias else shape[0] ** -0.5)
    norm = NewTensor("output_norm.weight", _F32, (spec.embd,))
    yield _Weights(norm, constant=_CONSTANTS["one"])
    yield _Weights(NewTensor("output.weight", *table), 3 * spec.embd**-0.5)


def _block_type(spec: SynthSpec, row: Row, sizes: Mapping[str, int]) -> BlockType:
    if row.kind == "expert" and spec.architecture.expert_type:
        return _find_type(spec.architecture.expert_type)
    if row.kind in ("matrix", "expert"):
        return _find_type(spec.type)
    if row.kind != "narrow":
        return _F32
    choices = (_find_type(name) for name in (spec.type, "q8_0", "f16"))
    return next(one for one in choices if sizes[row.shape[0]] % one.elements == 0)


def _find_type(name: str) -> BlockType:
    block_type = find_block_type(name)
    if block_type is None:
        raise UsageError(f"unknown block type {name}", f"use one of {', '.join(WEIGHT_TYPES)}")
    return block_type


def _generate_data(
    spec: SynthSpec, weights: Sequence[_Weights], hidden: int
) -> Iterator[memoryview]:
    """Yield the data of all tensors in order, including padding."""
    # This imports numpy, which is slow and not needed for the sizes.
    from autofit.model.synth.random_weights import RandomBlocks  # noqa: PLC0415

    sources: dict[tuple[str, float], RandomBlocks] = {}
    for one in weights:
        tensor = one.tensor
        if not one.deviation:
            yield memoryview(struct.pack("<f", one.constant) * tensor.shape[0])
        else:
            key = (tensor.block_type.name, one.deviation)
            if key not in sources:
                sources[key] = RandomBlocks(
                    tensor.block_type, one.deviation, spec.seed + len(sources)
                )
            # Rows of zeros make hidden tokens unlikely.
            zeros = 0
            if tensor.name == "output.weight":
                zeros = hidden * tensor.block_type.row_bytes(spec.embd)
                yield memoryview(bytes(zeros))
            yield from sources[key].views(tensor.nbytes - zeros)
        yield memoryview(bytes(tensor.padded_bytes - tensor.nbytes))
