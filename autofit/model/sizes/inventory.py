"""The bytes of a model by block and purpose.

A block is a repeating layer of llama.cpp. Tensors are grouped by the rule that decides their
device. Experts can be in system RAM while their layer is on a device. All other tensors of a block
follow its layer. Embeddings stay on the host. The output is a unit of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from autofit.errors import UsageError
from autofit.model.gguf.header import GgufHeader, OmittedArray, TensorInfo, read_header
from autofit.model.gguf.hparams import Hparams, check_hparams
from autofit.model.sizes.cache_shape import KNOWN_ARCHITECTURES, CacheShape, cache_shapes

_BLOCK_TENSOR = re.compile(r"blk\.([0-9]{1,6})\.(.+)")
# The patterns of llama.cpp's --n-cpu-moe and --n-cpu-ffn (`common/arg.cpp`).
_EXPERT = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")
_DENSE_FFN = re.compile(r"ffn_(up|down|gate)\.")
_ROUTER = re.compile(r"ffn_gate_inp\.|exp_probs_b|ffn_gate_tid2eid")
_RECURRENT = re.compile(r"ssm_|shortconv\.|time_mix_|channel_mix_")
_INPUT = re.compile(r"token_embd|token_types|position_embd|per_layer_token_embd")
_MAX_BLOCKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInventory(CacheShape):
    """The bytes of one block by purpose, and the shape of its cache.

    llama.cpp's `--n-cpu-moe` moves `expert_bytes`: the tensors that match
    `ffn_(up|down|gate|gate_up)_(ch|)exps`. `expert_up_gate_bytes` and `expert_down_bytes` are its
    two parts, `expert_max_bytes` is its largest tensor. `--n-cpu-ffn` moves `dense_ffn_bytes`:
    `ffn_(up|down|gate)`. Routers, shared experts and norms stay with their layer. `is_nextn` marks
    a block for multi-token prediction. llama.cpp counts such a block as a layer, but loads it only
    for speculative decoding.
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
        """Bytes that follow the block's layer: everything but the experts."""
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
        """Bytes of the whole block."""
        return self.device_bytes + self.expert_bytes


@dataclass(frozen=True, slots=True)
class ModelInventory:
    """The bytes of a model, and the sizes that its memory depends on.

    `embedding_bytes` is the token embedding, which stays on the host. `output_bytes` is the
    norm and head of the output unit. A head that is tied to the embedding is counted in both,
    because llama.cpp duplicates it. `total_bytes` is the size of all files. `tensors` are those
    of the header, for rules that name tensors.
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
        """Hash only fields that identify the file, since hashing thousands of tensors is slow."""
        return hash((self.digest, self.path, self.total_bytes))

    @property
    def block_count(self) -> int:
        """Number of blocks in the file, including those for multi-token prediction."""
        return len(self.blocks)

    @property
    def units(self) -> int:
        """Number of units that llama.cpp distributes over devices: the blocks and the output."""
        return self.block_count + 1

    @property
    def is_moe(self) -> bool:
        """True if any block has experts."""
        return any(block.expert_bytes for block in self.blocks)

    @property
    def expert_blocks(self) -> tuple[BlockInventory, ...]:
        """The blocks with experts, without those for multi-token prediction."""
        return tuple(b for b in self.blocks if b.expert_bytes and not b.is_nextn)


def read_inventory(path: Path) -> ModelInventory:
    """Read a model's headers and group its bytes.

    Raises:
        UsageError: the file cannot be read, has no blocks, or has impossible sizes.
    """
    header = read_header(path)
    check_hparams(header)
    return build_inventory(header)


def build_inventory(header: GgufHeader) -> ModelInventory:
    """Group the bytes of a model by block and purpose, from its header."""
    hparams = Hparams(header.metadata)
    path = header.files[0]
    by_block, outside = _group(header, hparams, path)
    nextn = min(hparams.integer("nextn_predict_layers"), len(by_block) - 1)
    names = [[name for name, _ in tensors] for tensors in by_block]
    shapes, notices = cache_shapes(hparams, names, nextn)
    if hparams.architecture not in KNOWN_ARCHITECTURES:
        notices.append(
            f"architecture {hparams.architecture} is unknown: memory is estimated from tensor "
            "names and the usual metadata keys until a launch measures it"
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


def _group(
    header: GgufHeader, hparams: Hparams, path: Path
) -> tuple[list[list[_Named]], list[TensorInfo]]:
    """Return the tensors by block, named without `blk.N.`, and those outside of blocks."""
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
            f"{path}: has {count} blocks, at most {_MAX_BLOCKS} are supported"
            if found
            else f"{path}: has no blocks",
            "give a language model: a projector, an adapter or a vocabulary cannot be tuned",
        )
    return [found.get(index, []) for index in range(count)], outside


def _block(
    index: int, tensors: list[_Named], shape: CacheShape, *, is_nextn: bool
) -> BlockInventory:
    nbytes: dict[str, int] = defaultdict(int)
    experts = []
    for name, tensor in tensors:
        kind = _kind(name, shape)
        nbytes[f"{kind}_bytes"] += tensor.nbytes
        if kind == "expert":
            experts.append(tensor)
    down = _sum(tensor for tensor in experts if ".ffn_down" in tensor.name)
    return BlockInventory(
        **(asdict(shape) | nbytes),
        index=index,
        expert_up_gate_bytes=nbytes["expert_bytes"] - down,
        expert_down_bytes=down,
        expert_max_bytes=max((tensor.nbytes for tensor in experts), default=0),
        expert_tensors=tuple(tensor.name for tensor in experts),
        is_nextn=is_nextn,
    )


def _kind(name: str, shape: CacheShape) -> str:
    """Return the purpose of a block's tensor, by its name without `blk.N.`."""
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
    if isinstance(tokens, tuple | OmittedArray):
        return len(tokens)
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    embedding = shapes.get("token_embd.weight", ())
    return hparams.integer("vocab_size", embedding[-1] if embedding else 0)


def _expert_width(header: GgufHeader) -> int:
    """Return the inner size of one expert: the length of a row of its last matrix."""
    for tensor in header.tensors:
        if tensor.name.endswith("ffn_down_exps.weight"):
            return tensor.shape[0]
    return 0
