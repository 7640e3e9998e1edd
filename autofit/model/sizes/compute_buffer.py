"""The compute buffer of each device: a model's graph, laid out as the runtime would.

A graph of one ubatch is made from the model's sizes (after llama.cpp's `llama-graph.cpp`) and
given to `autofit.model.sizes.graph_allocator`. Only sizes that grow with the ubatch or the context
are in it. Layers of a kind that follow each other add nothing, so a few stand for all.

Compared with the buffers of llama-server b11434 on CUDA and on remote devices: mixture of
experts and dense models, ubatch 512 to 4096, context 4,096 to 131,072, one and two devices,
with and without host experts (`benchmarks/bench_estimator.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autofit.model.sizes.graph_allocator import Tensor, buffer_bytes

HOST = -1
_SAME_LAYERS = 3  # how many of a run of equal layers are laid out
_LONGEST_PATTERN = 8  # layers of several kinds alternate in patterns this long at most


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """One layer as its graph sees it; sizes are elements, `experts_on` and `device` indices.

    `expert_tensors` are the bytes of one layer's up, gate and down experts (or gate_up and
    down), which are copied whole where they are computed away from their place.
    `weight_bytes` is the largest other matrix, copied where the whole layer lies on the host,
    or where `ffn_on` is the host.
    `cells` is how far back the attention sees, `index_k` the width of an indexer's keys;
    `channels` the width of a recurrent layer. `is_gated` tells of two matrices before `down`.
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
    index_k: int = 0
    is_gated: bool = True
    channels: int = 0
    ffn_on: int = 0
    n_ff: int = 0
    n_ff_shared: int = 0


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """The sizes that all layers share, in elements."""

    n_embd: int
    n_vocab: int
    n_head: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """How the graph is run.

    `outputs` are the rows of logits: one a slot in the server. `copies` is above one with
    pipeline parallelism. `staging_device` computes what lies in host memory, None where the
    host does that itself. `inplace_devices` scale the experts' results in place; the others
    need room beside them, which was seen on CUDA.
    """

    ubatch: int
    outputs: int
    flash_attn: bool = True
    copies: int = 1
    staging_device: int | None = None
    inplace_devices: frozenset[int] = frozenset()


def compute_bytes(
    model: ModelGraph, layers: tuple[LayerGraph, ...], output_device: int, settings: GraphSettings
) -> dict[int, int]:
    """Bytes of the compute buffer by device index, `HOST` included."""
    return dict(_planned(model, _shortened(layers), output_device, settings))


@lru_cache(maxsize=4096)
def _shortened(layers: tuple[LayerGraph, ...]) -> tuple[LayerGraph, ...]:
    """The layers with only the first few of every pattern that is repeated, or of equal layers."""
    found: list[LayerGraph] = []
    start = 0
    while start < len(layers):
        period, times = max(
            ((p, _repeats(layers, start, p)) for p in range(1, _LONGEST_PATTERN + 1)),
            key=lambda one: (one[0] * (one[1] - _SAME_LAYERS), -one[0]),
        )
        if times <= _SAME_LAYERS:
            period = times = 1
        found += layers[start : start + period * min(times, _SAME_LAYERS)]
        start += period * times
    return tuple(found)


def _repeats(layers: tuple[LayerGraph, ...], start: int, period: int) -> int:
    """How often the layers from `start` on repeat the first `period` of them, once at least."""
    times = 1
    while (
        start + period * (times + 1) <= len(layers)
        and layers[start + period * times : start + period * (times + 1)]
        == layers[start : start + period]
    ):
        times += 1
    return times


@lru_cache(maxsize=4096)
def _planned(
    model: ModelGraph, layers: tuple[LayerGraph, ...], output_device: int, settings: GraphSettings
) -> tuple[tuple[int, int], ...]:
    graph = _Graph(model, settings)
    graph.add(layers, output_device)
    return tuple(buffer_bytes(graph.nodes, settings.copies).items())


class _Graph:
    """Collects the results of a graph in the order they are computed.

    `device` is where the last result was made: what needs no weights stays there.
    """

    def __init__(self, model: ModelGraph, settings: GraphSettings) -> None:
        self.model = model
        self.settings = settings
        self.nodes: list[Tensor] = []
        self.masks: dict[int, Tensor] = {}
        self.device = HOST
        self.rows = settings.ubatch

    def add(self, layers: tuple[LayerGraph, ...], output_device: int) -> None:
        """The whole graph: embeddings, layers, output."""
        embd = self.model.n_embd
        # Rows of the embedding, and the place of embeddings that a client sends instead.
        given = [Tensor(HOST, self._bytes(embd), is_input=True) for _ in range(2)]
        sent = self._new(embd, given[0])
        hidden = self._new(embd, *given)
        hidden.is_kept = True
        for index, layer in enumerate(layers):
            # The first norm is made beside the embeddings.
            normed = self._norm(hidden, self._home(layer), HOST if not index else None)
            is_last = index == len(layers) - 1
            hidden = self._layer(layer, hidden, normed, is_last=is_last)
            if not index:
                hidden.sources.append(sent)
        normed = self._norm(hidden, output_device)
        self._new(self.model.n_vocab, normed)

    def _layer(
        self, layer: LayerGraph, hidden: Tensor, normed: Tensor, *, is_last: bool
    ) -> Tensor:
        embd = self.model.n_embd
        home = self._home(layer)
        attended = normed if layer.attention == "none" else self._attention(layer, normed)
        if is_last:
            self.rows = self.settings.outputs
            attended = self._new(embd, attended)
            hidden = self._new(embd, hidden)
        hidden = self._new(embd, attended, hidden, inplace=True)
        normed = self._norm(hidden, home)
        made = self._experts(layer, normed, home) if layer.expert_tensors else None
        width = layer.n_ff_shared if made else layer.n_ff
        if width:
            is_hosted = layer.ffn_on == HOST and not made
            dense = self._dense(layer, normed, width, self._staged() if is_hosted else home)
            made = self._new(embd, made, dense, inplace=True) if made else dense
        return self._new(embd, made, hidden, inplace=True) if made else hidden

    def _home(self, layer: LayerGraph) -> int:
        """Where what has weights in the layer is computed."""
        return self._staged() if layer.device == HOST else layer.device

    def _staged(self) -> int:
        """Where what lies in host memory is computed."""
        staging = self.settings.staging_device
        return HOST if staging is None else staging

    def _attention(self, layer: LayerGraph, normed: Tensor) -> Tensor:
        if layer.channels and layer.attention == "recurrent":
            return self._recurrent(layer, normed)
        heads = self.model.n_head
        head_q, head_v = layer.head_k, layer.head_v
        if layer.attention == "mla":
            # In DeepSeek's proportions: a row of 576 is a latent of 512 and 64 rotated, heads
            # are of 192 (64 of them rotated) and give 128.
            head_q, head_v = layer.head_k // 3, layer.head_k * 8 // 9
        query = self._view(self._matrix(layer, heads * head_q, normed))
        if layer.attention == "mla":
            latent = self._new(heads * head_v, query)
            query = self._view(self._new(heads * layer.head_k, latent, query))
        for width in (layer.n_head_kv * layer.head_k, layer.n_head_kv * layer.head_v):
            if width:
                self._new(0, self._view(self._matrix(layer, width, normed)))
        mask = self._mask(layer.cells)
        if layer.index_k:
            mask = self._chosen_cells(layer, normed, mask)
        if self.settings.flash_attn:
            made = self._view(self._new(heads * head_v, query, mask))
        else:
            scores = self._new(heads * layer.cells, query)
            scores = self._new(heads * layer.cells, scores, mask, inplace=True)
            made = self._new(heads * head_v, self._view(self._new(heads * head_v, scores)))
        if layer.attention == "mla":
            made = self._new(heads * layer.head_k * 2 // 9, made)
        return self._matrix(layer, self.model.n_embd, made)

    def _chosen_cells(self, layer: LayerGraph, normed: Tensor, mask: Tensor) -> Tensor:
        """An indexer's mask: scores of all cells, their order, and what is let through."""
        scores = self._new(layer.cells, normed)
        scores = self._new(layer.cells, scores, mask)
        order = self._new(layer.cells, scores)
        blocked = self._new(layer.cells, order)
        return self._new(layer.cells, blocked, mask)

    def _recurrent(self, layer: LayerGraph, normed: Tensor) -> Tensor:
        """Linear attention: a convolution over the channels, then a state per head."""
        channels = layer.channels
        mixed = self._matrix(layer, channels, normed)
        gate = self._matrix(layer, channels // 2, normed)
        wide = self._new(channels, mixed)
        convolved = self._new(channels, wide)
        parts = [self._new(channels // 3, self._view(convolved)) for _ in range(3)]
        made = self._new(channels // 2, *parts)
        return self._matrix(
            layer, self.model.n_embd, self._new(channels // 2, made, gate, inplace=True)
        )

    def _dense(self, layer: LayerGraph, normed: Tensor, width: int, place: int) -> Tensor:
        home, self.device = self.device, place
        is_hosted = layer.ffn_on == HOST
        made = self._matrix(layer, width, normed, is_hosted=is_hosted)
        if layer.is_gated:
            gate = self._matrix(layer, width, normed, is_hosted=is_hosted)
            made = self._new(width, gate, made)
        made = self._matrix(layer, self.model.n_embd, made, is_hosted=is_hosted)
        if place == HOST:
            self.device = home
        return made

    def _experts(self, layer: LayerGraph, normed: Tensor, home: int) -> Tensor:
        model = self.model
        used, width = model.n_expert_used, model.n_ff_exp * model.n_expert_used
        self.device = home
        logits = self._new(model.n_expert, normed)
        probabilities = self._new(model.n_expert, logits, inplace=True)
        chosen = self._view(self._new(model.n_expert, probabilities), used)
        weights = self._new(used, self._view(probabilities), chosen)
        normed = self._view(normed)
        is_hosted = layer.experts_on == HOST
        place = self._staged() if is_hosted else layer.experts_on
        self.device = place
        *first, last = (
            [Tensor(HOST, nbytes, is_weight=True)] if is_hosted and place != HOST else []
            for nbytes in layer.expert_tensors
        )
        if len(first) > 1:
            up, gate = (self._new(width, *weight, normed, chosen) for weight in first)
            made = self._new(width, gate, up)
        elif layer.is_gated:
            both = self._new(2 * width, *first[0], normed, chosen)
            made = self._new(width, self._view(both), self._view(both))
        else:
            made = self._new(width, *first[0], normed, chosen)
            made = self._new(width, made, inplace=True)
        made = self._new(model.n_embd * used, *last, made, chosen)
        if place == HOST:
            self.device = home
        inplace = self.device in self.settings.inplace_devices
        made = self._new(model.n_embd * used, made, weights, inplace=inplace)
        views = [self._view(made, model.n_embd) for _ in range(used)]
        total = views[0]
        for view in views[1:]:
            total = self._new(model.n_embd, total, view, inplace=True)
        return total

    def _norm(self, hidden: Tensor, device: int, made_on: int | None = None) -> Tensor:
        # Norms are bound to their layer's device, whatever went before.
        self.device = device if made_on is None else made_on
        normed = self._new(self.model.n_embd, hidden)
        self.device = device
        return self._new(self.model.n_embd, normed, inplace=True)

    def _matrix(
        self, layer: LayerGraph, width: int, source: Tensor, *, is_hosted: bool = False
    ) -> Tensor:
        """The source times a matrix of the layer."""
        is_staged = (is_hosted or layer.device == HOST) and self.device != HOST
        weights = [Tensor(HOST, layer.weight_bytes, is_weight=True)] if is_staged else []
        return self._new(width, *weights, source)

    def _mask(self, cells: int) -> Tensor:
        if cells not in self.masks:
            width = 2 if self.settings.flash_attn else 4
            nbytes = cells * self.settings.ubatch * width
            self.masks[cells] = Tensor(HOST, nbytes, is_input=True)
        return self.masks[cells]

    def _new(self, width: int, *sources: Tensor, inplace: bool = False) -> Tensor:
        tensor = Tensor(self.device, self._bytes(width), sources, inplace=inplace)
        self.nodes.append(tensor)
        return tensor

    def _view(self, tensor: Tensor, width: int | None = None) -> Tensor:
        nbytes = tensor.nbytes if width is None else self._bytes(width)
        view = Tensor(tensor.device, nbytes, [tensor], view_of=tensor)
        self.nodes.append(view)
        return view

    def _bytes(self, width: int) -> int:
        return width * self.rows * 4
