"""A model of random weights that llama.cpp loads and answers with.

Its architecture is qwen3moe, or qwen3 without experts. Its answers make no sense, but it takes
the memory and the time of a real model of the same sizes.

Its vocabulary is byte-level byte pair encoding, as in GPT-2, so that it can encode any text. Its
answers must be text too: only printable ASCII has visible tokens, and other bytes have tokens
that llama.cpp reads but never shows (token type UNUSED).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING

from autofit.errors import AutofitError, UsageError
from autofit.model.gguf.block_type import BlockType, find_block_type
from autofit.model.gguf.header_writer import NewTensor, Value, encode_header
from autofit.units import MIB

if TYPE_CHECKING:
    from autofit.model.synth.random_weights import RandomBlocks

WEIGHT_TYPES = ("f16", "q8_0", "q4_0", "q4_k", "q6_k")
_F32 = BlockType(0, "f32", 1, 4)
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_LARGEST_SIZE = (1 << 31) - 1  # sizes in the file have 32 bits


@dataclass(frozen=True, slots=True)
class SynthSpec:
    """The sizes of a model, as in llama.cpp: `embd` is its width, `ff` that of one expert.

    `experts` 0 makes a dense model. `type` is that of all matrices except the embedding and the
    output, which have `embd_type`. With `header_only` all weights are zeros in a hole: the file
    has its full size, takes almost no disk, and loads.
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
        """Bytes of the data of all tensors."""
        return sum(tensor.padded_bytes for tensor, _ in _tensors(self))


def write_model(spec: SynthSpec, path: Path) -> None:
    """Write a model; it replaces an existing file, and an error leaves no partial file.

    Raises:
        UsageError: sizes that do not match, or a path that cannot be written.
        AutofitError: the disk is full.
    """
    check_spec(spec)
    _check_path(spec, path)
    vocabulary = build_vocabulary(spec.vocab)
    tensors = list(_tensors(spec))
    header = encode_header(_metadata(spec, vocabulary), [tensor for tensor, _ in tensors])
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as file:
            file.write(header)
            if spec.header_only:
                file.truncate(len(header) + spec.size_bytes)
            else:
                file.writelines(_generate_data(spec, tensors, vocabulary.hidden))
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
    ranges = [*_range_faults(spec)]
    if ranges:  # the other checks need positive numbers
        yield ranges[0]
        return
    if spec.layers > _MAX_LAYERS:
        yield f"--layers {spec.layers}: must be at most {_MAX_LAYERS}, the limit of llama.cpp"
    if spec.experts and not 1 <= spec.used <= spec.experts:
        yield f"--used {spec.used}: must be 1 to {spec.experts}, the number of experts"
    if spec.heads % spec.kv_heads:
        yield f"--heads {spec.heads}: must be a multiple of --kv-heads {spec.kv_heads}"
    if spec.head_dim % 2:
        yield f"--head-dim {spec.head_dim}: must be even"
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
    rows = {
        "--embd": spec.embd,
        "--ff": spec.ff,
        "--heads x --head-dim": spec.heads * spec.head_dim,
    }
    for option, name, widths in (
        ("--type", spec.type, rows),
        ("--embd-type", spec.embd_type, {"--embd": spec.embd}),
    ):
        block_type = find_block_type(name)
        if block_type is None or name.lower() not in WEIGHT_TYPES:
            yield f"{option} {name}: must be one of {', '.join(WEIGHT_TYPES)}"
            continue
        for row, width in widths.items():
            if width % block_type.elements:
                yield (
                    f"{row} {width}: must be a multiple of {block_type.elements}, "
                    f"the block of {option} {name}"
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
    arch = "qwen3moe" if spec.experts else "qwen3"
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
        # An empty list has no kind, and llama.cpp requires a list of strings.
        "tokenizer.ggml.merges": vocabulary.merges or ("e r",),
        "tokenizer.ggml.bos_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.eos_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.padding_token_id": vocabulary.end_of_text,
        "tokenizer.ggml.add_bos_token": False,
    }


def _tensors(spec: SynthSpec) -> Iterator[tuple[NewTensor, float]]:
    """Yield tensors in file order with the standard deviation of their numbers; 0 means all ones.

    The deviation of a matrix is 1 / sqrt(length of a row), so that its product is as large as
    its input. That of the output is three times as much: some tokens become more likely.
    """
    weight = _weight_type(spec.type)
    embd_weight = _weight_type(spec.embd_type)
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


def _weight_type(name: str) -> BlockType:
    block_type = find_block_type(name)
    if block_type is None:
        raise UsageError(f"unknown block type {name}", f"one of {', '.join(WEIGHT_TYPES)}")
    return block_type


def _generate_data(
    spec: SynthSpec, tensors: list[tuple[NewTensor, float]], hidden: int
) -> Iterator[memoryview]:
    """Yield the data of all tensors in order, including padding."""
    # This imports numpy, which is slow and not needed for the sizes.
    from autofit.model.synth.random_weights import RandomBlocks  # noqa: PLC0415

    sources: dict[tuple[str, float], RandomBlocks] = {}
    for tensor, deviation in tensors:
        if not deviation:
            yield memoryview(b"\x00\x00\x80\x3f" * tensor.shape[0])  # 1.0 as f32
        else:
            key = (tensor.block_type.name, deviation)
            if key not in sources:
                sources[key] = RandomBlocks(tensor.block_type, deviation, spec.seed + len(sources))
            # Rows of zeros make hidden tokens unlikely.
            zeros = 0
            if tensor.name == "output.weight":
                zeros = hidden * tensor.block_type.row_bytes(spec.embd)
                yield memoryview(bytes(zeros))
            yield from sources[key].views(tensor.nbytes - zeros)
        yield memoryview(bytes(tensor.padded_bytes - tensor.nbytes))


NORMAL, CONTROL, UNUSED = 1, 3, 5  # token types of llama.cpp
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, their types, and the merges; the first `hidden` tokens print nothing."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    hidden: int

    @property
    def end_of_text(self) -> int:
        """Id of the token that ends a text."""
        return self.hidden - 1


def _byte_letters() -> dict[int, str]:
    """Return the visible letter by which GPT-2 writes each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update((byte, chr(256 + rank)) for rank, byte in enumerate(others))
    return letters


_LETTERS = _byte_letters()
_SPACE = _LETTERS[0x20]
_SHOWN = [_LETTERS[byte] for byte in range(0x20, 0x7F)]
_HIDDEN = [_LETTERS[byte] for byte in range(256) if not 0x20 <= byte < 0x7F]  # noqa: PLR2004
_PAIRED = ascii_lowercase + ascii_uppercase + digits

SMALLEST_VOCABULARY = len(_SHOWN) + len(_HIDDEN) + 1
LARGEST_VOCABULARY = (
    SMALLEST_VOCABULARY + len(ascii_lowercase) + len(_PAIRED) ** 2 + len(_PAIRED) ** 4
)


def build_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of `SMALLEST_VOCABULARY` to `LARGEST_VOCABULARY` tokens.

    After the bytes come a space with a letter, pairs of letters and digits, and pairs of pairs.
    """
    hidden = [*_HIDDEN, END_OF_TEXT]
    parts = list(islice(_merges(), size - SMALLEST_VOCABULARY))
    tokens = [*hidden, *_SHOWN, *(left + right for left, right in parts)]
    types = [UNUSED] * len(_HIDDEN) + [CONTROL] + [NORMAL] * (size - len(hidden))
    return Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(f"{left} {right}" for left, right in parts),
        hidden=len(hidden),
    )


def _merges() -> Iterator[tuple[str, str]]:
    """Yield the two parts of each merged token, in the order of merging."""
    yield from product([_SPACE], ascii_lowercase)
    pairs = [*product(ascii_lowercase, ascii_lowercase)]
    known = set(pairs)
    pairs += [pair for pair in product(_PAIRED, _PAIRED) if pair not in known]
    yield from pairs
    joined = ["".join(pair) for pair in pairs]
    yield from product(joined, joined)
