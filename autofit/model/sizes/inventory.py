"""A model as bytes per block: what lies where, and what may move.

A block is what llama.cpp calls a repeating layer. The file's tensors are grouped by what
decides their place: experts may be sent to system RAM by themselves, everything else of a
block follows its layer, embeddings stay with the host, the output is a unit of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from autofit.errors import UsageError
from autofit.model.gguf.header import GgufHeader, LongArray, TensorInfo, read_header
from autofit.model.gguf.header_check import check_header
from autofit.model.sizes import architecture
from autofit.model.sizes.cache_shape import CacheShape, Hparams, cache_shapes

_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")
# What llama.cpp's --n-cpu-moe and --n-cpu-ffn match (`common/arg.cpp`).
_EXPERT = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")
_DENSE_FFN = re.compile(r"ffn_(up|down|gate)\.")
_ROUTER = re.compile(r"ffn_gate_inp\.|exp_probs_b|ffn_gate_tid2eid")
_RECURRENT = re.compile(r"ssm_|shortconv\.|time_mix_|channel_mix_")
_INPUT = re.compile(r"token_embd|token_types|position_embd|per_layer_token_embd")
_MAX_BLOCKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInventory(CacheShape):
    """The bytes of one block by what they are for, and what its cache needs.

    `expert_bytes` is what llama.cpp's `--n-cpu-moe` moves: the tensors matching
    `ffn_(up|down|gate|gate_up)_(ch|)exps`; `expert_up_gate_bytes` and `expert_down_bytes` are
    its two parts, `expert_max_bytes` its largest tensor. `dense_ffn_bytes` is what
    `--n-cpu-ffn` moves: `ffn_(up|down|gate)`. Routers, shared experts and norms stay with
    their layer. `is_nextn` marks a block for multi-token prediction, which llama.cpp counts as
    a layer but loads only when asked to speculate with it.
    """

    index: int
    attention_bytes: int = 0
    dense_ffn_bytes: int = 0
    expert_bytes: int = 0
    expert_up_gate_bytes: int = 0
    expert_down_bytes: int = 0
    expert_max_bytes: int = 0
    shared_expert_bytes: int = 0
    router_bytes: int = 0
    norm_bytes: int = 0
    recurrent_bytes: int = 0
    other_bytes: int = 0
    expert_tensors: tuple[str, ...] = ()
    is_nextn: bool = False

    @property
    def device_bytes(self) -> int:
        """Everything but the experts: what follows the block's layer."""
        return (
            self.attention_bytes
            + self.dense_ffn_bytes
            + self.shared_expert_bytes
            + self.router_bytes
            + self.norm_bytes
            + self.recurrent_bytes
            + self.other_bytes
        )

    @property
    def total_bytes(self) -> int:
        """The whole block."""
        return self.device_bytes + self.expert_bytes


@dataclass(frozen=True, slots=True)
class ModelInventory:
    """A model's bytes by place, and the sizes that memory depends on.

    `embedding_bytes` is the token embedding, which stays with the host. `output_bytes` is what
    the output unit takes on its device: norm and head; where the head is tied to the embedding
    it is counted here once more, as llama.cpp duplicates it. `total_bytes` is the size of the
    file, all shards. `tensors` are those of the header, for rules that name tensors.
    """

    architecture: str
    name: str
    path: Path
    files: tuple[Path, ...]
    blocks: tuple[BlockInventory, ...]
    embedding_bytes: int
    output_bytes: int
    is_output_tied: bool
    n_vocab: int
    n_embd: int
    n_head: int
    n_ff: int
    n_ff_exp: int
    n_expert: int
    n_expert_used: int
    context_train: int
    total_bytes: int
    digest: str = ""
    notices: tuple[str, ...] = ()
    tensors: tuple[TensorInfo, ...] = ()

    def __hash__(self) -> int:
        """By what tells files apart: thousands of tensors would take longer than what is kept."""
        return hash((self.digest, self.path, self.total_bytes))

    @property
    def block_count(self) -> int:
        """Blocks in the file, those for multi-token prediction included."""
        return len(self.blocks)

    @property
    def units(self) -> int:
        """What llama.cpp distributes over devices: the blocks and the output."""
        return self.block_count + 1

    @property
    def is_moe(self) -> bool:
        """Whether any block has experts."""
        return any(block.expert_bytes for block in self.blocks)

    @property
    def expert_blocks(self) -> tuple[BlockInventory, ...]:
        """The blocks that have experts and are loaded for ordinary use."""
        return tuple(b for b in self.blocks if b.expert_bytes and not b.is_nextn)


def inventory(path: Path) -> ModelInventory:
    """Read a model's headers and group its bytes.

    Raises:
        UsageError: the file cannot be read, has no blocks, or sizes that cannot be.
    """
    header = read_header(path)
    check_header(header)
    return inventory_of(header)


def inventory_of(header: GgufHeader) -> ModelInventory:
    """Group the bytes of a model whose headers were read."""
    hparams = Hparams(header.metadata)
    path = header.files[0]
    by_block, outside = _grouped(header, hparams, path)
    nextn = min(hparams.integer("nextn_predict_layers"), len(by_block) - 1)
    names = [[name for name, _ in tensors] for tensors in by_block]
    shapes, notices = cache_shapes(hparams, names, nextn)
    if hparams.architecture not in architecture.KNOWN:
        notices.append(
            f"architecture {hparams.architecture} is not known: weights are told by the tensors' "
            "names, the cache by the usual keys; a launch will tell more"
        )
    first_nextn = len(by_block) - nextn
    blocks = tuple(
        _block(index, tensors, shape, is_nextn=index >= first_nextn)
        for index, (tensors, shape) in enumerate(zip(by_block, shapes, strict=True))
    )
    embedding = _sum(tensor for tensor in outside if _INPUT.match(tensor.name))
    output = _sum(tensor for tensor in outside if not _INPUT.match(tensor.name))
    is_tied = not any(tensor.name == "output.weight" for tensor in outside)
    shared = _sum(tensor for tensor in outside if tensor.name == "token_embd.weight")
    return ModelInventory(
        architecture=hparams.architecture,
        name=str(header.metadata.get("general.name", path.stem)),
        path=path,
        files=header.files,
        blocks=blocks,
        embedding_bytes=embedding,
        output_bytes=output + (shared if is_tied else 0),
        is_output_tied=is_tied,
        n_vocab=_n_vocab(header, hparams),
        n_embd=hparams.integer("embedding_length"),
        n_head=hparams.integer("attention.head_count"),
        n_ff=hparams.integer("feed_forward_length"),
        n_ff_exp=hparams.integer("expert_feed_forward_length", _expert_width(header)),
        n_expert=hparams.integer("expert_count"),
        n_expert_used=hparams.integer("expert_used_count"),
        context_train=hparams.integer("context_length"),
        total_bytes=header.total_bytes,
        digest=header.digest,
        notices=(*header.notices, *notices),
        tensors=header.tensors,
    )


_Named = tuple[str, TensorInfo]


def _grouped(
    header: GgufHeader, hparams: Hparams, path: Path
) -> tuple[list[list[_Named]], list[TensorInfo]]:
    """Tensors by block, named without `blk.N.`, and those outside of blocks."""
    found: dict[int, list[_Named]] = {}
    outside = []
    for tensor in header.tensors:
        match = _BLOCK_TENSOR.match(tensor.name)
        if match is None:
            outside.append(tensor)
        else:
            found.setdefault(int(match[1]), []).append((match[2], tensor))
    count = max(hparams.integer("block_count"), max(found, default=-1) + 1)
    if not found or count > _MAX_BLOCKS:
        raise UsageError(
            f"{path}: has no model's blocks"
            if not found
            else f"{path}: says it has {count} blocks",
            "a projector, an adapter or a vocabulary is no model that a server could be tuned for",
        )
    return [found.get(index, []) for index in range(count)], outside


def _block(
    index: int, tensors: list[_Named], shape: CacheShape, *, is_nextn: bool
) -> BlockInventory:
    kinds = [(_kind(name, shape), name, tensor) for name, tensor in tensors]

    def total(kind: str) -> int:
        return _sum(tensor for found, _, tensor in kinds if found == kind)

    experts = [(name, tensor) for kind, name, tensor in kinds if kind == "expert"]
    down = _sum(tensor for name, tensor in experts if name.startswith("ffn_down"))
    expert_bytes = total("expert")
    return BlockInventory(
        **asdict(shape),
        index=index,
        attention_bytes=total("attention"),
        dense_ffn_bytes=total("dense_ffn"),
        expert_bytes=expert_bytes,
        expert_up_gate_bytes=expert_bytes - down,
        expert_down_bytes=down,
        expert_max_bytes=max((tensor.nbytes for _, tensor in experts), default=0),
        shared_expert_bytes=total("shared_expert"),
        router_bytes=total("router"),
        norm_bytes=total("norm"),
        recurrent_bytes=total("recurrent"),
        other_bytes=total("other"),
        expert_tensors=tuple(tensor.name for _, tensor in experts),
        is_nextn=is_nextn,
    )


def _kind(name: str, shape: CacheShape) -> str:
    """What a block's tensor is for, by its name without `blk.N.`."""
    if _EXPERT.match(name):
        return "expert"
    if "_shexp" in name:
        return "shared_expert"
    if _ROUTER.match(name):
        return "router"
    if _DENSE_FFN.match(name):
        return "dense_ffn"
    if _RECURRENT.match(name):
        return "recurrent"
    if name.startswith("nextn."):
        return "other"
    if "norm" in name:
        return "norm"
    if name.startswith(("attn_", "indexer")):
        return "recurrent" if shape.attention == "recurrent" else "attention"
    return "other"


def _sum(tensors: Iterable[TensorInfo]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _n_vocab(header: GgufHeader, hparams: Hparams) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple | LongArray):
        return len(tokens)
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    embedding = shapes.get("token_embd.weight", ())
    return hparams.integer("vocab_size", embedding[-1] if embedding else 0)


def _expert_width(header: GgufHeader) -> int:
    """The inner size of one expert, which is the row of its last matrix."""
    for tensor in header.tensors:
        if tensor.name.endswith("ffn_down_exps.weight"):
            return tensor.shape[0]
    return 0
