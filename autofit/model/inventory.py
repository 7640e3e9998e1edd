"""A model as bytes per block: what lies where, and what may move.

A block is what llama.cpp calls a repeating layer. The file's tensors are grouped by what
decides their place: experts may be sent to system RAM by themselves, everything else of a
block follows its layer, embeddings stay with the host, the output is a unit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

AttentionKind = Literal["full", "swa", "mla", "recurrent", "none"]


@dataclass(frozen=True, slots=True)
class BlockInventory:
    """The bytes of one block by what they are for, and what its cache needs.

    `expert_bytes` is what llama.cpp's `--n-cpu-moe` moves: the tensors matching
    `ffn_(up|down|gate|gate_up)_(ch|)exps`; `expert_up_gate_bytes` and `expert_down_bytes` are
    its two parts, `expert_max_bytes` its largest tensor. `dense_ffn_bytes` is what
    `--n-cpu-ffn` moves: `ffn_(up|down|gate)`. Routers, shared experts and norms stay with
    their layer. `is_nextn` marks a block for multi-token prediction, which llama.cpp counts as
    a layer but loads only when asked to speculate with it.

    `head_k` and `head_v` are elements per KV head and token (`head_v` is 0 where only K is
    cached), `window` the tokens a sliding window keeps (0: all of them). `state_r` and
    `state_s` are the elements of a recurrent block's two f32 states, per sequence.
    """

    index: int
    attention: AttentionKind = "none"
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
    n_head_kv: int = 0
    head_k: int = 0
    head_v: int = 0
    window: int = 0
    state_r: int = 0
    state_s: int = 0

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
    file, all shards.
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
