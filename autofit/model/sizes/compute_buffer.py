"""The compute buffer of each device, from the model's computation graph.

The graph of one ubatch follows llama.cpp's `llama-graph.cpp`, and `graph_allocator` plans its
buffers. The graph has only the results that grow with the ubatch or the context. More equal
layers in sequence need no more memory, so a few of them represent all.

`benchmarks/bench_estimator.py` compares it with the buffers of llama-server b11434 on CUDA
and on remote devices: mixture of experts and dense models, ubatch 512 to 4096, context 4,096 to
131,072, one and two devices, with and without host experts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from autofit.model.sizes.graph_allocator import Tensor, plan_buffers
from autofit.model.sizes.inventory import BlockInventory, ModelInventory
from autofit.model.sizes.run_settings import RunSettings
from autofit.model.sizes.tensor_placement import HOST, Placement
from autofit.trial.device import backend_of

_MOST_EQUAL_LAYERS = 3  # of equal layers in sequence, only these are in the graph
_LONGEST_PATTERN = 8  # layers of several kinds alternate in patterns up to this length
# These backends scale the results of experts in place: RPC b11434 and Vulkan b10434 (at ubatch
# 4,096 a server's buffer had 720 MiB, with CUDA 976: ubatch x width x experts used x 4 bytes).
_SCALES_IN_PLACE = ("RPC", "Vulkan")
_CONVOLUTION_WIDTH = 4  # usual in recurrent layers
_FIRST_EXPERTS = re.compile(r"ffn_(up|gate|gate_up)_(ch|)exps\.weight")


@dataclass(frozen=True, slots=True)
class GraphLayer:
    """One layer of a graph; sizes are in elements, places are device indices or `HOST`.

    `expert_tensors` are the bytes of the layer's up, gate and down experts (or gate_up and
    down). They are copied if they are computed in another place than `experts_on`.
    `weight_bytes` is the largest other matrix, which is copied if the layer or `ffn_on` is on
    the host. `cells` are the cached tokens that attention sees. `window` separates the mask of
    a windowed layer from that of others with as many cells. `index_k` is the width of an
    indexer's keys, `channels` the width of a recurrent layer. With `is_gated` there are two
    matrices before `down`.
    """

    device: int
    experts_on: int = HOST
    expert_tensors: tuple[int, ...] = ()
    weight_bytes: int = 0
    attention: str = "full"
    n_head_kv: int = 0
    head_k: int = 0
    head_v: int = 0
    cells: int = 0
    window: int = 0
    index_k: int = 0
    is_gated: bool = True
    channels: int = 0
    ffn_on: int = 0
    n_ff: int = 0
    n_ff_shared: int = 0


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The sizes that all layers share, in elements."""

    n_embd: int
    n_vocab: int
    n_head: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """The settings that the graph depends on.

    `outputs` are rows of logits: one per slot in the server. `copies` is above one with
    pipeline parallelism. `staging_device` computes with weights in host memory; None if the
    host does. `inplace_devices` scale the results of experts in place; other devices need a
    second buffer for them, as seen on CUDA.
    """

    ubatch: int
    outputs: int
    flash_attn: bool = True
    copies: int = 1
    staging_device: int | None = None
    inplace_devices: frozenset[int] = frozenset()


def compute_buffer_bytes(
    inventory: ModelInventory, placement: Placement, run: RunSettings
) -> dict[int, int]:
    """Return the bytes of the compute buffer by place, including `HOST`."""
    sizes = GraphSizes(
        n_embd=inventory.n_embd,
        n_vocab=inventory.n_vocab,
        n_head=inventory.n_head,
        n_expert=inventory.n_expert,
        n_expert_used=inventory.n_expert_used,
        n_ff_exp=inventory.n_ff_exp,
    )
    layers = tuple(
        _graph_layer(inventory, block, placement, run)
        for block in inventory.blocks
        if not block.is_nextn
    )
    settings = GraphSettings(
        ubatch=run.ubatch,
        outputs=run.outputs,
        flash_attn=run.flash_attn,
        copies=run.copies,
        staging_device=run.staging_device,
        inplace_devices=frozenset(
            index
            for index, device in enumerate(placement.devices)
            if backend_of(device.name) in _SCALES_IN_PLACE
        ),
    )
    return graph_bytes(sizes, layers, placement.output, settings)


def _graph_layer(
    inventory: ModelInventory, block: BlockInventory, placement: Placement, run: RunSettings
) -> GraphLayer:
    device = placement.units[block.index]
    experts_on = placement.experts[block.index]
    is_recurrent = block.attention == "recurrent"
    has_cells = block.attention not in ("none", "recurrent")
    return GraphLayer(
        device=device,
        experts_on=HOST if HOST in experts_on else experts_on[0] if experts_on else device,
        expert_tensors=_expert_tensors(block),
        weight_bytes=max(block.attention_bytes // 2, block.dense_ffn_bytes // 3),
        attention=block.attention,
        n_head_kv=block.n_head_kv,
        head_k=block.head_k,
        head_v=block.head_v,
        cells=run.cells.windowed(block.window) if has_cells else 0,
        window=block.window if run.cells.swa_full else 0,
        index_k=block.index_k,
        is_gated=_is_gated(inventory, block),
        channels=block.state_r // (_CONVOLUTION_WIDTH - 1) if is_recurrent else 0,
        ffn_on=HOST if HOST in placement.dense_ffn[block.index] else device,
        n_ff=inventory.n_ff if block.dense_ffn_bytes else 0,
        n_ff_shared=_shared_expert_width(inventory, block),
    )


def _expert_tensors(block: BlockInventory) -> tuple[int, ...]:
    """Return the bytes of the matrices before `down`, and of `down`."""
    if not block.expert_bytes:
        return ()
    count = sum(1 for name in block.expert_tensors if _FIRST_EXPERTS.search(name)) or 1
    return (*[block.expert_up_gate_bytes // count] * count, block.expert_down_bytes)


def _is_gated(inventory: ModelInventory, block: BlockInventory) -> bool:
    """Return whether the block has both a gate and `up`; some models have no gate."""
    if block.expert_bytes:
        return any("gate" in name for name in block.expert_tensors)
    prefix = f"blk.{block.index}.ffn_"
    named = [tensor.name for tensor in inventory.tensors if tensor.name.startswith(prefix)]
    return not named or any(name.startswith(f"{prefix}gate") for name in named)


def _shared_expert_width(inventory: ModelInventory, block: BlockInventory) -> int:
    """Return the inner size of the shared expert, computed from the bytes of one expert."""
    if not block.shared_expert_bytes or not block.expert_bytes or not inventory.n_expert:
        return 0
    one = block.expert_bytes / inventory.n_expert
    return round(inventory.n_ff_exp * block.shared_expert_bytes / one)


def graph_bytes(
    sizes: GraphSizes, layers: tuple[GraphLayer, ...], output_place: int, settings: GraphSettings
) -> dict[int, int]:
    """Return the bytes of a graph's buffer by place, including `HOST`."""
    return dict(_graph_bytes(sizes, _shorten(layers), output_place, settings))


@lru_cache(maxsize=4096)
def _shorten(layers: tuple[GraphLayer, ...]) -> tuple[GraphLayer, ...]:
    """Keep only the first few of equal layers, and the first few repeats of a pattern."""
    found: list[GraphLayer] = []
    start = 0
    while start < len(layers):
        period, times = max(
            ((p, _count_repeats(layers, start, p)) for p in range(1, _LONGEST_PATTERN + 1)),
            key=lambda one: (one[0] * (one[1] - _MOST_EQUAL_LAYERS), -one[0]),
        )
        if times <= _MOST_EQUAL_LAYERS:
            period = times = 1
        found += layers[start : start + period * min(times, _MOST_EQUAL_LAYERS)]
        start += period * times
    return tuple(found)


def _count_repeats(layers: tuple[GraphLayer, ...], start: int, period: int) -> int:
    """Return how often `period` layers occur in sequence from `start` on, at least 1."""
    times = 1
    pattern = layers[start : start + period]
    end = start + 2 * period
    while end <= len(layers) and layers[end - period : end] == pattern:
        times += 1
        end += period
    return times


@lru_cache(maxsize=4096)
def _graph_bytes(
    sizes: GraphSizes, layers: tuple[GraphLayer, ...], output_place: int, settings: GraphSettings
) -> tuple[tuple[int, int], ...]:
    graph = _Graph(sizes, settings)
    graph.add_model(layers, output_place)
    return tuple(plan_buffers(graph.nodes, settings.copies).items())


class _Graph:
    """A computation graph: its results in the order in which they are computed.

    `place` is that of the last result: an operation without weights stays there.
    """

    def __init__(self, sizes: GraphSizes, settings: GraphSettings) -> None:
        self.sizes = sizes
        self.settings = settings
        self.nodes: list[Tensor] = []
        self.masks: dict[tuple[int, int], Tensor] = {}
        self.place = HOST
        # The place that computes with weights in host memory.
        self.staging = HOST if settings.staging_device is None else settings.staging_device
        self.rows = settings.ubatch

    def add_model(self, layers: tuple[GraphLayer, ...], output_place: int) -> None:
        """Add the whole graph: embeddings, layers, output."""
        embd = self.sizes.n_embd
        # Rows of the embedding, and room for embeddings that a client can send instead.
        inputs = [Tensor(HOST, self._bytes(embd), is_input=True) for _ in range(2)]
        sent = self._new(embd, inputs[0])
        hidden = self._new(embd, *inputs)
        hidden.is_kept = True
        for index, layer in enumerate(layers):
            # The first norm is computed in the place of the embeddings.
            normed = self._norm(hidden, self._home(layer), HOST if not index else None)
            is_last = index == len(layers) - 1
            hidden = self._layer(layer, hidden, normed, is_last=is_last)
            if not index:
                hidden.sources.append(sent)
        normed = self._norm(hidden, output_place)
        self._new(self.sizes.n_vocab, normed)

    def _layer(
        self, layer: GraphLayer, hidden: Tensor, normed: Tensor, *, is_last: bool
    ) -> Tensor:
        """Add a layer; the last one computes only the rows of the outputs."""
        embd = self.sizes.n_embd
        home = self._home(layer)
        attended = normed if layer.attention == "none" else self._attention(layer, normed)
        if is_last:
            self.rows = self.settings.outputs
            attended = self._new(embd, attended)
            hidden = self._new(embd, hidden)
        hidden = self._new(embd, attended, hidden, inplace=True)
        normed = self._norm(hidden, home)
        result = self._experts(layer, normed, home) if layer.expert_tensors else None
        width = layer.n_ff_shared if result else layer.n_ff
        if width:
            is_hosted = layer.ffn_on == HOST and not result
            dense = self._dense(layer, normed, width, self.staging if is_hosted else home)
            result = self._new(embd, result, dense, inplace=True) if result else dense
        return self._new(embd, result, hidden, inplace=True) if result else hidden

    def _home(self, layer: GraphLayer) -> int:
        """Return the place that computes a layer."""
        return self.staging if layer.device == HOST else layer.device

    def _attention(self, layer: GraphLayer, normed: Tensor) -> Tensor:
        """Add attention of any kind, with its output matrix."""
        if layer.channels and layer.attention == "recurrent":
            return self._recurrent(layer, normed)
        heads = self.sizes.n_head
        head_q, head_v = layer.head_k, layer.head_v
        if layer.attention == "mla":
            # DeepSeek's proportions: a row of 576 is a latent of 512 and 64 rotated elements;
            # a head has 192 elements (64 rotated) and its result 128.
            head_q, head_v = layer.head_k // 3, layer.head_k * 8 // 9
        query = self._view(self._matrix(layer, heads * head_q, normed))
        if layer.attention == "mla":
            latent = self._new(heads * head_v, query)
            query = self._view(self._new(heads * layer.head_k, latent, query))
        for width in (layer.n_head_kv * layer.head_k, layer.n_head_kv * layer.head_v):
            if width:
                self._new(0, self._view(self._matrix(layer, width, normed)))
        mask = self._mask(layer)
        if layer.index_k:
            mask = self._indexer_mask(layer, normed, mask)
        if self.settings.flash_attn:
            result = self._view(self._new(heads * head_v, query, mask))
        else:
            scores = self._new(heads * layer.cells, query)
            scores = self._new(heads * layer.cells, scores, mask, inplace=True)
            result = self._new(heads * head_v, self._view(self._new(heads * head_v, scores)))
        if layer.attention == "mla":
            result = self._new(heads * layer.head_k * 2 // 9, result)
        return self._matrix(layer, self.sizes.n_embd, result)

    def _indexer_mask(self, layer: GraphLayer, normed: Tensor, mask: Tensor) -> Tensor:
        """Add an indexer's mask: the scores of all cells, their order, the selected ones."""
        scores = self._new(layer.cells, normed)
        scores = self._new(layer.cells, scores, mask)
        order = self._new(layer.cells, scores)
        blocked = self._new(layer.cells, order)
        return self._new(layer.cells, blocked, mask)

    def _recurrent(self, layer: GraphLayer, normed: Tensor) -> Tensor:
        """Add linear attention: a convolution over the channels, then a state per head."""
        channels = layer.channels
        mixed = self._matrix(layer, channels, normed)
        gate = self._matrix(layer, channels // 2, normed)
        wide = self._new(channels, mixed)
        convolved = self._new(channels, wide)
        parts = [self._new(channels // 3, self._view(convolved)) for _ in range(3)]
        result = self._new(channels // 2, *parts)
        return self._matrix(
            layer, self.sizes.n_embd, self._new(channels // 2, result, gate, inplace=True)
        )

    def _dense(self, layer: GraphLayer, normed: Tensor, width: int, place: int) -> Tensor:
        """Add a feed-forward network, computed in a place."""
        home, self.place = self.place, place
        is_hosted = layer.ffn_on == HOST
        result = self._matrix(layer, width, normed, is_hosted=is_hosted)
        if layer.is_gated:
            gate = self._matrix(layer, width, normed, is_hosted=is_hosted)
            result = self._new(width, gate, result)
        result = self._matrix(layer, self.sizes.n_embd, result, is_hosted=is_hosted)
        if place == HOST:
            self.place = home
        return result

    def _experts(self, layer: GraphLayer, normed: Tensor, home: int) -> Tensor:
        """Add the router and the experts; their results are added up for each token."""
        sizes = self.sizes
        used, width = sizes.n_expert_used, sizes.n_ff_exp * sizes.n_expert_used
        self.place = home
        logits = self._new(sizes.n_expert, normed)
        probabilities = self._new(sizes.n_expert, logits, inplace=True)
        chosen = self._view(self._new(sizes.n_expert, probabilities), used)
        weights = self._new(used, self._view(probabilities), chosen)
        normed = self._view(normed)
        is_hosted = layer.experts_on == HOST
        place = self.staging if is_hosted else layer.experts_on
        self.place = place
        *first, last = (
            [Tensor(HOST, nbytes, is_weight=True)] if is_hosted and place != HOST else []
            for nbytes in layer.expert_tensors
        )
        if len(first) > 1:
            up, gate = (self._new(width, *weight, normed, chosen) for weight in first)
            result = self._new(width, gate, up)
        elif layer.is_gated:
            both = self._new(2 * width, *first[0], normed, chosen)
            result = self._new(width, self._view(both), self._view(both))
        else:
            result = self._new(width, *first[0], normed, chosen)
            result = self._new(width, result, inplace=True)
        result = self._new(sizes.n_embd * used, *last, result, chosen)
        if place == HOST:
            self.place = home
        inplace = self.place in self.settings.inplace_devices
        result = self._new(sizes.n_embd * used, result, weights, inplace=inplace)
        views = [self._view(result, sizes.n_embd) for _ in range(used)]
        total = views[0]
        for view in views[1:]:
            total = self._new(sizes.n_embd, total, view, inplace=True)
        return total

    def _norm(self, hidden: Tensor, place: int, first_place: int | None = None) -> Tensor:
        # The runtime binds norms to their layer's device, wherever the input is.
        self.place = place if first_place is None else first_place
        normed = self._new(self.sizes.n_embd, hidden)
        self.place = place
        return self._new(self.sizes.n_embd, normed, inplace=True)

    def _matrix(
        self, layer: GraphLayer, width: int, source: Tensor, *, is_hosted: bool = False
    ) -> Tensor:
        """Add the product of the source and a matrix of the layer."""
        is_staged = (is_hosted or layer.device == HOST) and self.place != HOST
        weights = [Tensor(HOST, layer.weight_bytes, is_weight=True)] if is_staged else []
        return self._new(width, *weights, source)

    def _mask(self, layer: GraphLayer) -> Tensor:
        key = (layer.cells, layer.window)
        if key not in self.masks:
            width = 2 if self.settings.flash_attn else 4
            nbytes = layer.cells * self.settings.ubatch * width
            self.masks[key] = Tensor(HOST, nbytes, is_input=True)
        return self.masks[key]

    def _new(self, width: int, *sources: Tensor, inplace: bool = False) -> Tensor:
        """Add a result with `width` elements per row."""
        tensor = Tensor(self.place, self._bytes(width), list(sources), inplace=inplace)
        self.nodes.append(tensor)
        return tensor

    def _view(self, tensor: Tensor, width: int | None = None) -> Tensor:
        nbytes = tensor.nbytes if width is None else self._bytes(width)
        view = Tensor(tensor.place, nbytes, [tensor], view_of=tensor)
        self.nodes.append(view)
        return view

    def _bytes(self, width: int) -> int:
        return width * self.rows * 4
