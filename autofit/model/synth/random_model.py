"""Writes a model of random weights that llama.cpp loads and answers with.

Architecture qwen3moe, or qwen3 where there are no experts. It says nothing sensible, but takes
the memory and the time of a real model of the same sizes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autofit.errors import AutofitError, UsageError
from autofit.model.gguf.block_type import BlockType, block_type_named
from autofit.model.gguf.header_writer import NewTensor, Value, header_bytes
from autofit.model.synth import synth_vocab
from autofit.units import MIB

if TYPE_CHECKING:
    from autofit.model.synth.random_block import RandomBlocks

WEIGHT_TYPES = ("f16", "q8_0", "q4_0", "q4_k", "q6_k")
_F32 = BlockType(0, "f32", 1, 4)
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_LARGEST_SIZE = (1 << 31) - 1  # sizes in the file are of 32 bits


@dataclass(frozen=True, slots=True)
class SynthSpec:
    """The sizes of the model, as in llama.cpp: `embd` is the width, `ff` that of one expert.

    `experts` 0 makes a dense model. `type` is that of all matrices but the embedding and the
    output, which are of `embd_type`. With `header_only` the data is a hole: the file has its
    full size and takes hardly any disk, loads, and answers nonsense of zeros.
    """

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
        """The data of all tensors."""
        return sum(tensor.padded_bytes for tensor, _ in _tensors(self))


def write(spec: SynthSpec, path: Path) -> None:
    """Write the model; an existing file is replaced, a partial one never left behind.

    Raises:
        UsageError: sizes that do not go together, or a path that cannot be written.
        AutofitError: the disk is full.
    """
    check(spec)
    _check_place(spec, path)
    vocabulary = synth_vocab.vocabulary(spec.vocab)
    tensors = list(_tensors(spec))
    header = header_bytes(_metadata(spec, vocabulary), [tensor for tensor, _ in tensors])
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("xb", buffering=0) as file:
            descriptor = file.fileno()
            _write_all(descriptor, memoryview(header))
            if spec.header_only:
                os.truncate(descriptor, len(header) + spec.size_bytes)
            else:
                for view in _data(spec, tensors, vocabulary.silent):
                    _write_all(descriptor, view)
        partial.replace(path)
    except OSError as error:
        raise AutofitError(
            f"cannot write {path}: {error.strerror}",
            f"it needs {_in_mib(spec.size_bytes)}: free some space, or choose another folder",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def check(spec: SynthSpec) -> None:
    """Compare the sizes with each other and with what llama.cpp can load.

    Raises:
        UsageError: all faults together.
    """
    faults = [*_faults(spec)]
    if faults:
        raise UsageError("\n".join(faults), "`autofit synth --help` lists the sizes")


def _faults(spec: SynthSpec) -> Iterator[str]:
    ranges = [*_range_faults(spec)]
    if ranges:  # the others would be about numbers without sense
        yield ranges[0]
        return
    if spec.layers > _MAX_LAYERS:
        yield f"--layers {spec.layers}: llama.cpp takes at most {_MAX_LAYERS}"
    if spec.experts and not 1 <= spec.used <= spec.experts:
        yield f"--used {spec.used}: must be 1 to {spec.experts}, the number of experts"
    if spec.heads % spec.kv_heads:
        yield f"--heads {spec.heads}: must be a multiple of --kv-heads {spec.kv_heads}"
    if spec.head_dim % 2:
        yield f"--head-dim {spec.head_dim}: must be even"
    if not synth_vocab.SMALLEST <= spec.vocab <= synth_vocab.LARGEST:
        yield f"--vocab {spec.vocab}: must be {synth_vocab.SMALLEST} to {synth_vocab.LARGEST}"
    if not 0 <= spec.seed < 1 << 64:
        yield f"--seed {spec.seed}: must be 0 to 2^64 - 1"
    yield from _type_faults(spec)


def _range_faults(spec: SynthSpec) -> Iterator[str]:
    for name in ("layers", "embd", "ff", "heads", "kv_heads", "head_dim", "ctx", "experts"):
        size, least = getattr(spec, name), 0 if name == "experts" else 1
        if size < least:
            yield f"--{_option(name)} {size}: must be at least {least}"
        if size > _LARGEST_SIZE:
            yield f"--{_option(name)} {size}: must be at most {_LARGEST_SIZE}"
    if spec.experts and spec.ff * spec.used > _LARGEST_SIZE:
        yield f"--ff {spec.ff} x --used {spec.used}: must be at most {_LARGEST_SIZE}"


def _type_faults(spec: SynthSpec) -> Iterator[str]:
    rows = {
        "--embd": spec.embd,
        "--ff": spec.ff,
        "--heads x --head-dim": spec.heads * spec.head_dim,
    }
    for option, name, widths in (
        ("--type", spec.type, rows),
        ("--embd-type", spec.embd_type, {"--embd": spec.embd}),
    ):
        block_type = block_type_named(name)
        if block_type is None or name.lower() not in WEIGHT_TYPES:
            yield f"{option} {name}: must be one of {', '.join(WEIGHT_TYPES)}"
            continue
        for row, width in widths.items():
            if width % block_type.elements:
                yield (
                    f"{row} {width}: must be a multiple of {block_type.elements}, "
                    f"the block of {option} {name}"
                )


def _option(name: str) -> str:
    return name.replace("_", "-")


def _check_place(spec: SynthSpec, path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path}: is a folder", "give the name of a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is no regular file", "give the name of a new file")
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", "make it first, or choose another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: cannot be written to", "choose another folder")
    free = shutil.disk_usage(folder).free
    if not spec.header_only and spec.size_bytes > free:
        raise AutofitError(
            f"cannot write {path}: it needs {_in_mib(spec.size_bytes)}, {_in_mib(free)} are free",
            "free some space, choose another folder or smaller sizes",
        )


def _in_mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.0f} MiB"


def _metadata(spec: SynthSpec, vocabulary: synth_vocab.Vocabulary) -> Mapping[str, Value]:
    arch = _architecture(spec)
    sizes: dict[str, Value] = {
        "context_length": spec.ctx,
        "embedding_length": spec.embd,
        "block_count": spec.layers,
        "feed_forward_length": spec.ff * (spec.used if spec.experts else 1),
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "rope.dimension_count": spec.head_dim,
    }
    if spec.experts:
        sizes["expert_count"] = spec.experts
        sizes["expert_used_count"] = spec.used
        sizes["expert_feed_forward_length"] = spec.ff
    return {
        "general.architecture": arch,
        "general.name": f"autofit synth {arch} of random weights",
        "general.quantization_version": 2,
        **{f"{arch}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        # An empty list has no kind; llama.cpp wants one of strings.
        "tokenizer.ggml.merges": vocabulary.merges or ("e r",),
        "tokenizer.ggml.bos_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.eos_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.padding_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.add_bos_token": False,
    }


def _architecture(spec: SynthSpec) -> str:
    return "qwen3moe" if spec.experts else "qwen3"


def _tensors(spec: SynthSpec) -> Iterator[tuple[NewTensor, float]]:
    """Tensors in file order, each with the deviation of its numbers; 0 means all ones.

    A matrix deviates by the square root of its row's length, so that what it multiplies keeps
    its size; the output by three times that, so that some tokens are likelier than others.
    """
    weight = _known(spec.type)
    embd_weight = _known(spec.embd_type)
    embd, heads = spec.embd, spec.heads * spec.head_dim
    kv_heads = spec.kv_heads * spec.head_dim

    def matrix(name: str, *shape: int) -> tuple[NewTensor, float]:
        return NewTensor(f"{name}.weight", weight, shape), shape[0] ** -0.5

    def ones(name: str, length: int) -> tuple[NewTensor, float]:
        return NewTensor(f"{name}.weight", _F32, (length,)), 0.0

    yield NewTensor("token_embd.weight", embd_weight, (embd, spec.vocab)), embd**-0.5
    for index in range(spec.layers):
        block = f"blk.{index}"
        yield ones(f"{block}.attn_norm", embd)
        yield matrix(f"{block}.attn_q", embd, heads)
        yield matrix(f"{block}.attn_k", embd, kv_heads)
        yield matrix(f"{block}.attn_v", embd, kv_heads)
        yield matrix(f"{block}.attn_output", heads, embd)
        yield ones(f"{block}.attn_q_norm", spec.head_dim)
        yield ones(f"{block}.attn_k_norm", spec.head_dim)
        yield ones(f"{block}.ffn_norm", embd)
        if spec.experts:
            router = NewTensor(f"{block}.ffn_gate_inp.weight", _F32, (embd, spec.experts))
            yield router, embd**-0.5
            yield matrix(f"{block}.ffn_gate_exps", embd, spec.ff, spec.experts)
            yield matrix(f"{block}.ffn_up_exps", embd, spec.ff, spec.experts)
            yield matrix(f"{block}.ffn_down_exps", spec.ff, embd, spec.experts)
        else:
            yield matrix(f"{block}.ffn_gate", embd, spec.ff)
            yield matrix(f"{block}.ffn_up", embd, spec.ff)
            yield matrix(f"{block}.ffn_down", spec.ff, embd)
    yield ones("output_norm", embd)
    yield NewTensor("output.weight", embd_weight, (embd, spec.vocab)), 3 * embd**-0.5


def _known(name: str) -> BlockType:
    block_type = block_type_named(name)
    if block_type is None:
        raise UsageError(f"unknown block type {name}", f"one of {', '.join(WEIGHT_TYPES)}")
    return block_type


def _data(
    spec: SynthSpec, tensors: list[tuple[NewTensor, float]], silent: int
) -> Iterator[memoryview]:
    """The data of all tensors, padding included, in views to be written one after the other."""
    # numpy, which nobody needs who only asks for the sizes.
    from autofit.model.synth.random_block import RandomBlocks  # noqa: PLC0415

    sources: dict[tuple[str, float], RandomBlocks] = {}
    for tensor, deviation in tensors:
        if not deviation:
            yield memoryview(b"\x00\x00\x80\x3f" * tensor.shape[0])  # 1.0 as f32
        else:
            key = (tensor.block_type.name, deviation)
            if key not in sources:
                sources[key] = RandomBlocks(tensor.block_type, deviation, spec.seed + len(sources))
            # Rows of zeros make tokens that show nothing unlikely.
            quiet = 0
            if tensor.name == "output.weight":
                quiet = silent * tensor.block_type.row_bytes(spec.embd)
                yield memoryview(bytes(quiet))
            yield from sources[key].stretches(tensor.nbytes - quiet)
        yield memoryview(bytes(tensor.padded_bytes - tensor.nbytes))


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]
