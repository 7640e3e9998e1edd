"""The computation graph of one ubatch, and the bytes that it needs in each place.

The graph follows llama.cpp's `llama-graph.cpp` and `src/models` (build 11434), and
`graph_allocator` plans its buffers. The graph has only results that grow with the ubatch or the
context, and small results that separate gaps. More equal layers in sequence need no more memory,
so a few of them represent all. The order of operations matters: it decides which gaps are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autofit.model.sizes.graph_allocator import Tensor, plan_buffers
from autofit.model.sizes.tensor_placement import HOST

_MOST_EQUAL_LAYERS = 3  # of equal layers in sequence, only these are in the graph
_LONGEST_PATTERN = 8  # layers of several kinds alternate in patterns up to this length
CONVOLUTION_WIDTH = 4  # usual in recurrent layers


@dataclass(frozen=True, slots=True)
class GraphLayer:
    """One layer of a graph; sizes are in elements, places are device indices or `HOST`.

    `expert_tensors` are the bytes of the layer's up, gate and down experts (or gate_up and
    down). They are copied if they are computed in another place than `experts_on`.
    `weight_bytes` is the largest other matrix, which is copied if the layer or `ffn_on` is on
    the host. `query` is the width of the queries of all heads, and of their gates if there are
    any. Attention to latents has the width of a `latent`, and of a head's result after it.
    `cells` are the cached tokens that attention sees. `window` separates the mask of a windowed
    layer from that of others with as many cells. `index_k` is the width of an indexer's keys.
    `channels` is the width of a recurrent layer, `state` its states of all sequences. With
    `is_gated` there are two matrices before `down`.
    """

    device: int
    experts_on: int = HOST
    expert_tensors: tuple[int, ...] = ()
    weight_bytes: int = 0
    attention: str = "full"
    query: int = 0
    latent: int = 0
    head_result: int = 0
    n_head_kv: int = 0
    head_k: int = 0
    head_v: int = 0
    cells: int = 0
    window: int = 0
    index_k: int = 0
    is_gated: bool = True
    channels: int = 0
    state: int = 0
    ffn_on: int = 0
    n_ff: int = 0
    n_ff_shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """The sizes of a model in elements, and the settings, that all layers of a graph share.

    With `has_full_last_layer` the rows of the outputs are selected after the last layer, not in
    it. `outputs` are rows of logits: one per slot in the server. `copies` is above one with
    pipeline parallelism. `staging_device` computes with weights in host memory; None if the
    host does. `inplace_devices` scale the results of experts in place; other devices need a
    second buffer for them, as seen on CUDA.
    """

    n_embd: int
    n_vocab: int
    n_head: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    has_full_last_layer: bool = False
    ubatch: int
    outputs: int
    flash_attn: bool = True
    copies: int = 1
    staging_device: int | None = None
    inplace_devices: frozenset[int] = frozenset()


def graph_bytes(
    layers: tuple[GraphLayer, ...], output_place: int, settings: GraphSettings
) -> dict[int, int]:
    """Return the bytes of a graph's buffer by place, including `HOST`."""
    return dict(_graph_bytes(_shorten(layers), output_place, settings))


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
    layers: tuple[GraphLayer, ...], output_place: int, settings: GraphSettings
) -> tuple[tuple[int, int], ...]:
    graph = _Graph(settings)
    graph.add_model(layers, output_place)
    return tuple(plan_buffers(graph.nodes, settings.copies).items())


class _Graph:
    """A computation graph: its results in the order in which they are computed.

    `place` is that of the last result: an operation without weights stays there.
    """

    def __init__(self, settings: GraphSettings) -> None:
        self.settings = settings
        self.nodes: list[Tensor] = []
        self.masks: dict[tuple[int, int], Tensor] = {}
        self.place = HOST
        # The place that computes with weights in host memory.
        self.staging = HOST if settings.staging_device is None else settings.staging_device
        self.rows = settings.ubatch
        # The numbers of the rows that become outputs. They are small, but separate gaps.
        self.selected = Tensor(HOST, 4 * settings.outputs, is_input=True)

    def add_model(self, layers: tuple[GraphLayer, ...], output_place: int) -> None:
        """Add the whole graph: embeddings, layers, output."""
        embd = self.settings.n_embd
        # Embeddings that a client can send, alone (not copied if unused) or among tokens, and the
        # embeddings of the tokens. The runtime plans all three ways.
        alone = Tensor(HOST, self._bytes(embd), is_input=True, is_kept=True)
        mixed = Tensor(HOST, self._bytes(embd), is_input=True)
        slots = Tensor(HOST, 8 * self.rows, is_input=True)  # small, but it makes a gap larger
        hidden = self._new(embd, alone)
        rows = self._new(embd)
        for index, layer in enumerate(layers):
            if not index:
                self.place = self._home(layer)
                copied = self._new(embd, mixed)
                copied.is_kept = True  # nothing reads it, so nothing frees it
                self._new(0, copied, rows, slots)
            normed = self._norm(hidden, self._home(layer))
            is_last = index == len(layers) - 1
            next_home = output_place if is_last else self._home(layers[index + 1])
            is_cropped = is_last and not self.settings.has_full_last_layer
            hidden = self._layer(layer, hidden, normed, next_home, is_cropped=is_cropped)
        if self.settings.has_full_last_layer:
            hidden = self._crop(hidden)
        normed = self._norm(hidden, output_place)
        self._new(self.settings.n_vocab, normed)

    def _layer(
        self,
        layer: GraphLayer,
        hidden: Tensor,
        normed: Tensor,
        next_home: int,
        *,
        is_cropped: bool,
    ) -> Tensor:
        """Add a layer. A cropped layer computes only the rows of the outputs.

        `next_home` is the place of what follows the layer. The runtime moves operations without
        weights there after experts on the host, up to the next matrix.
        """
        embd = self.settings.n_embd
        home = self._home(layer)
        attended = normed if layer.attention == "none" else self._attention(layer, normed)
        if is_cropped:
            attended, hidden = self._crop(attended), self._crop(hidden)
        hidden = self._new(embd, attended, hidden, inplace=True)
        normed = self._norm(hidden, home)
        after_experts = home if layer.n_ff_shared else next_home
        result = (
            self._experts(layer, normed, home, after_experts) if layer.expert_tensors else None
        )
        width = layer.n_ff_shared if result else layer.n_ff
        if width:
            is_hosted = layer.ffn_on == HOST and not result
            dense = self._dense(layer, normed, width, self.staging if is_hosted else home)
            result = self._new(embd, result, dense, inplace=True) if result else dense
        return self._new(embd, result, hidden, inplace=True) if result else hidden

    def _crop(self, tensor: Tensor) -> Tensor:
        """Select the rows of the outputs."""
        self.rows = self.settings.outputs
        return self._new(self.settings.n_embd, tensor, self.selected)

    def _home(self, layer: GraphLayer) -> int:
        """Return the place that computes a layer."""
        return self.staging if layer.device == HOST else layer.device

    def _attention(self, layer: GraphLayer, normed: Tensor) -> Tensor:
        """Add attention of any kind, with its output matrix."""
        if layer.channels and layer.attention == "recurrent":
            return self._recurrent(layer, normed)
        heads = self.settings.n_head
        query = self._matrix(layer, layer.query, normed)
        if layer.latent:
            return self._latent_attention(layer, normed, query)
        joined, query = query, self._new(heads * layer.head_k, self._view(query))
        # Keys and values are in memory until both are stored in the cache.
        value_width, key_width = layer.n_head_kv * layer.head_v, layer.n_head_kv * layer.head_k
        stored = [self._view(self._matrix(layer, value_width, normed))] if value_width else []
        stored.append(self._rotate(self._matrix(layer, key_width, normed)))
        for one in reversed(stored):
            self._new(0, one)
        head_v = layer.head_v or layer.head_k  # keys can be values too
        result = self._view(self._weighted_values(layer, normed, query, head_v))
        if layer.query > heads * layer.head_k:  # the other half is a gate
            gate = self._new(heads * head_v, self._view(joined))
            result = self._new(heads * head_v, result, gate, inplace=True)
        return self._matrix(layer, self.settings.n_embd, result)

    def _latent_attention(self, layer: GraphLayer, normed: Tensor, query: Tensor) -> Tensor:
        """Add attention to latents: a row of the cache is a latent and some rotated elements."""
        heads, rotated = self.settings.n_head, layer.head_k - layer.latent
        absorbed = self._new(heads * layer.latent, self._view(query))
        position = self._new(heads * rotated, self._view(query))
        query = self._new(heads * layer.head_k, self._view(absorbed), position)
        row = self._matrix(layer, layer.head_k, normed)
        latent = self._new(layer.latent, self._view(row))
        self._new(0, self._new(layer.head_k, latent, self._new(rotated, self._view(row))))
        result = self._weighted_values(layer, normed, query, layer.latent)
        result = self._new(heads * layer.head_result, self._view(result))
        result = self._new(heads * layer.head_result, self._view(result))
        return self._matrix(layer, self.settings.n_embd, result)

    def _weighted_values(
        self, layer: GraphLayer, normed: Tensor, query: Tensor, width: int
    ) -> Tensor:
        """Add the sum of the cached values of a head's `width`, weighted by their scores."""
        heads = self.settings.n_head
        mask = self._mask(layer)
        if layer.index_k:
            mask = self._indexer_mask(layer, normed, mask)
        if self.settings.flash_attn:
            return self._new(heads * width, query, mask)
        scores = self._new(heads * layer.cells, query)
        scores = self._new(heads * layer.cells, scores, mask, inplace=True)
        return self._new(heads * width, self._view(self._new(heads * width, scores)))

    def _rotate(self, tensor: Tensor) -> Tensor:
        """Add the norm and the rotation of heads, which are a view of a matrix's result."""
        return self._new(tensor.nbytes // (4 * self.rows), self._view(tensor))

    def _indexer_mask(self, layer: GraphLayer, normed: Tensor, mask: Tensor) -> Tensor:
        """Add an indexer's mask: the scores of all cells, their order, the selected ones."""
        scores = self._new(layer.cells, normed)
        scores = self._new(layer.cells, scores, mask)
        order = self._new(layer.cells, scores)
        blocked = self._new(layer.cells, order)
        return self._new(layer.cells, blocked, mask)

    def _recurrent(self, layer: GraphLayer, normed: Tensor) -> Tensor:
        """Add a gated delta net: a convolution over the channels, then a state per head.

        Half of the channels are values, a quarter each queries and keys, which are repeated.
        """
        channels, sequences = layer.channels, layer.state // self.rows
        # The convolution needs some earlier tokens too.
        earlier = channels * (CONVOLUTION_WIDTH - 1) // self.rows
        wide = self._new(channels + earlier, self._matrix(layer, channels, normed))
        state = self._new(sequences)
        convolved = self._new(channels, wide)
        parts = [
            self._new(channels // 2, self._new(channels // 4, self._view(convolved)))
            for _ in range(2)
        ]
        result = self._new(channels // 2 + sequences, self._view(convolved), *parts, state)
        result = self._new(channels // 2, self._view(result))
        gate = self._new(channels // 2, self._view(self._matrix(layer, channels // 2, normed)))
        result = self._new(channels // 2, result, gate, inplace=True)
        return self._matrix(layer, self.settings.n_embd, result)

    def _dense(self, layer: GraphLayer, normed: Tensor, width: int, place: int) -> Tensor:
        """Add a feed-forward network, computed in a place."""
        home, self.place = self.place, place
        is_hosted = layer.ffn_on == HOST
        result = self._matrix(layer, width, normed, is_hosted=is_hosted)
        if layer.is_gated:
            gate = self._matrix(layer, width, normed, is_hosted=is_hosted)
            result = self._new(width, gate, result)
        result = self._matrix(layer, self.settings.n_embd, result, is_hosted=is_hosted)
        if place == HOST:
            self.place = home
        return result

    def _experts(self, layer: GraphLayer, normed: Tensor, home: int, after_host: int) -> Tensor:
        """Add the router and the experts; their results are added up for each token.

        That is done in the place of the experts, or in `after_host` after experts on the host.
        """
        settings = self.settings
        used, width = settings.n_expert_used, settings.n_ff_exp * settings.n_expert_used
        self.place = home
        logits = self._new(settings.n_expert, normed)
        probabilities = self._new(settings.n_expert, logits, inplace=True)
        chosen = self._view(self._new(settings.n_expert, probabilities), used)
        weights = self._new(used, self._view(probabilities), chosen)
        weights = self._new(used, self._view(weights))  # their sum becomes 1
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
        result = self._new(settings.n_embd * used, *last, result, chosen)
        if place == HOST:
            self.place = after_host
        inplace = self.place in settings.inplace_devices
        result = self._new(settings.n_embd * used, result, weights, inplace=inplace)
        views = [self._view(result, settings.n_embd) for _ in range(used)]
        total = views[0]
        for view in views[1:]:
            total = self._new(settings.n_embd, total, view, inplace=True)
        return total

    def _norm(self, hidden: Tensor, place: int) -> Tensor:
        # The runtime binds norms to their layer's device, wherever the input is.
        self.place = place
        normed = self._new(self.settings.n_embd, hidden)
        return self._new(self.settings.n_embd, normed, inplace=True)

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
