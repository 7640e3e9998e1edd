"""A model as a list of tensors, and what the physics needs to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

PARTS = ("rest", "ffn", "gate", "up", "down")
REST, FFN, GATE, UP, DOWN = range(len(PARTS))
EXPERT_PARTS = (GATE, UP, DOWN)

# Elements and bytes of one block of a tensor type, by ggml's type id.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110), 12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4), 29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
}  # fmt: skip
TYPE_IDS = {name: number for number, (name, _, _) in TYPES.items()}


class Tensor(NamedTuple):
    """One tensor of the file; `shape` has the row length first, as GGUF writes it."""

    name: str
    shape: tuple[int, ...]
    type_id: int

    @property
    def elements(self) -> int:
        """The number of weights."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """The bytes of its data, without padding."""
        _, block, size = TYPES[self.type_id]
        return self.elements // block * size


Attention = Literal["full", "swa", "recurrent", "none"]


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes and weights of one layer, each by part (`PARTS`)."""

    nbytes: tuple[int, ...]
    elements: tuple[int, ...]
    largest_expert_bytes: int
    attention: Attention = "full"

    @property
    def expert_bytes(self) -> int:
        """Bytes of the routed experts."""
        return sum(self.nbytes[part] for part in EXPERT_PARTS)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The facts of a model for the physics; made by `from_tensors`, equal only to itself."""

    name: str
    architecture: str
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: tuple[Tensor, ...] = field(repr=False)
    blocks: tuple[Block, ...] = field(repr=False)
    embedding_bytes: int
    output_bytes: int
    output_elements: int
    n_vocab: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    n_ff_expert: int
    n_expert: int
    n_used: int
    n_swa: int
    state_bytes: int  # of one recurrent layer, one sequence
    context_train: int
    total_bytes: int
    elements: int

    @property
    def n_layer(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def units(self) -> int:
        """The units that -ngl counts: the blocks and the output layer."""
        return len(self.blocks) + 1

    @property
    def expert_layers(self) -> int:
        """The number of blocks with routed experts."""
        return sum(block.expert_bytes > 0 for block in self.blocks)

    @classmethod
    def from_tensors(cls, metadata: Mapping[str, Any], tensors: Iterable[Tensor]) -> Model:
        """The model of a GGUF file's metadata and tensor list."""
        tensors = tuple(tensors)
        arch = str(metadata["general.architecture"])

        def number(key: str, default: int = 0) -> int:
            value = metadata.get(f"{arch}.{key}", default)
            return int(value[0] if isinstance(value, list | tuple) else value)

        n_embd = number("embedding_length")
        n_head = number("attention.head_count", 1)
        head = n_embd // max(1, n_head)
        n_layer = number("block_count")
        by_name = {tensor.name: tensor for tensor in tensors}
        output = by_name.get("output.weight", by_name["token_embd.weight"])
        norm = by_name.get("output_norm.weight")
        return cls(
            name=str(metadata.get("general.name", arch)),
            architecture=arch,
            metadata=metadata,
            tensors=tensors,
            blocks=_blocks(tensors, n_layer, arch, metadata),
            embedding_bytes=by_name["token_embd.weight"].nbytes,
            output_bytes=output.nbytes + (norm.nbytes if norm else 0),
            output_elements=output.elements,
            n_vocab=by_name["token_embd.weight"].shape[1],
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=number("attention.head_count_kv", n_head),
            head_k=number("attention.key_length", head),
            head_v=number("attention.value_length", head),
            n_ff_expert=number("expert_feed_forward_length", number("feed_forward_length")),
            n_expert=number("expert_count"),
            n_used=number("expert_used_count"),
            n_swa=number("attention.sliding_window"),
            state_bytes=_state_bytes(number),
            context_train=number("context_length", 32768),
            total_bytes=sum(tensor.nbytes for tensor in tensors),
            elements=sum(tensor.elements for tensor in tensors),
        )


def part_of(name: str) -> int:
    """Return the part of a block that a tensor belongs to."""
    kind = name.split(".", 2)[2]
    if "exps" in kind and "shexp" not in kind:
        if kind.startswith("ffn_down"):
            return DOWN
        return GATE if kind.startswith(("ffn_gate_exps", "ffn_gate_chexps")) else UP
    return FFN if kind.startswith(("ffn_up.", "ffn_gate.", "ffn_down.")) else REST


def block_of(name: str) -> int | None:
    """The index of the block a tensor belongs to, None outside of the blocks."""
    return int(name.split(".", 2)[1]) if name.startswith("blk.") else None


def _state_bytes(number: Any) -> int:
    """Bytes of a recurrent layer's state (float32): convolution rows and the state itself."""
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    rows = max(0, number("ssm.conv_kernel") - 1)
    return 4 * (rows * (inner + 2 * number("ssm.group_count") * state) + state * inner)


def _attention(index: int, names: set[str], arch: str, metadata: Mapping[str, Any]) -> Attention:
    interval = metadata.get(f"{arch}.full_attention_interval")
    if interval and (index + 1) % int(interval):
        return "recurrent"
    if not any(name.startswith("attn_") for name in names):
        return "none"
    pattern = metadata.get(f"{arch}.attention.sliding_window_pattern")
    if metadata.get(f"{arch}.attention.sliding_window") and pattern:
        is_local = pattern[index] if isinstance(pattern, list | tuple) else (index + 1) % pattern
        return "swa" if is_local else "full"
    return "full"


def _blocks(
    tensors: tuple[Tensor, ...], n_layer: int, arch: str, metadata: Mapping[str, Any]
) -> tuple[Block, ...]:
    nbytes = [[0] * len(PARTS) for _ in range(n_layer)]
    elements = [[0] * len(PARTS) for _ in range(n_layer)]
    largest = [0] * n_layer
    names: list[set[str]] = [set() for _ in range(n_layer)]
    for tensor in tensors:
        index = block_of(tensor.name)
        if index is None:
            continue
        part = part_of(tensor.name)
        nbytes[index][part] += tensor.nbytes
        elements[index][part] += tensor.elements
        names[index].add(tensor.name.split(".", 2)[2])
        if part in EXPERT_PARTS:
            largest[index] = max(largest[index], tensor.nbytes)
    return tuple(
        Block(
            nbytes=tuple(nbytes[i]),
            elements=tuple(elements[i]),
            largest_expert_bytes=largest[i],
            attention=_attention(i, names[i], arch, metadata),
        )
        for i in range(n_layer)
    )
