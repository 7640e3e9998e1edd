"""The buffer of each place for any computation graph, planned like ggml's allocator.

Follows `ggml-alloc.c`: the best fitting gap is used, and a result overwrites an operand that no
other result needs. Splits follow `ggml-backend.cpp`: consecutive nodes of one place are a split,
and operands from other places are copied at the start of the split. `compute_buffer` makes the
graphs of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

_ALIGNMENT = 128
_ENDLESS = 1 << 62


@dataclass(slots=True, eq=False)
class Tensor:
    """A result in a graph, with its operands in `sources` and the place that computes it.

    A place is a number: in the graphs of models, a device index, or -1 for the host. A view shares
    the memory of the tensor `view_of`. An `inplace` result can overwrite an operand of the same
    size. A weight is not allocated in its own place, but copied to the place that uses it. Inputs
    are allocated before everything else. A kept tensor is never freed.
    """

    place: int
    nbytes: int
    sources: list[Tensor] = field(default_factory=list)
    _: KW_ONLY
    view_of: Tensor | None = None
    inplace: bool = False
    is_input: bool = False
    is_weight: bool = False
    is_kept: bool = False
    offset: int = field(default=-1, init=False)
    is_allocated: bool = field(default=False, init=False)
    children: int = field(default=0, init=False)
    views: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.view_of is not None:
            self.view_of = self.view_of.view_of or self.view_of


class _Region:
    """One buffer: its gaps as [offset, size], by offset, and the bytes used at the peak."""

    def __init__(self) -> None:
        self.free: list[list[int]] = [[0, _ENDLESS]]
        self.used = 0

    def take(self, size: int) -> int:
        """Allocate in the smallest gap that is large enough. The last gap has no end."""
        best = min(
            (gap for gap in self.free[:-1] if gap[1] >= size),
            key=lambda gap: (gap[1], -gap[0]),
            default=self.free[-1],
        )
        offset = best[0]
        best[0] += size
        best[1] -= size
        if not best[1]:
            self.free.remove(best)
        self.used = max(self.used, offset + size)
        return offset

    def give_back(self, offset: int, size: int) -> None:
        """Free memory and join it with the gaps next to it."""
        index = 0
        while self.free[index][0] < offset:
            index += 1
        after = self.free[index]
        before = self.free[index - 1] if index else None
        if offset + size == after[0]:
            size += after[1]
            self.free.pop(index)
        if before and before[0] + before[1] == offset:
            before[1] += size
        else:
            self.free.insert(index, [offset, size])


def plan_buffers(nodes: Sequence[Tensor], copies: int = 1) -> dict[int, int]:
    """Return the bytes that each place needs to compute the nodes in their order.

    Args:
        nodes: results, each after its operands. They are changed and cannot be used again.
        copies: number of copies of each operand from another place. Pipeline parallelism needs one
            for each batch in progress; without it the number is 1.
    """
    ordered, kept = _with_copies(nodes, copies)
    regions: dict[int, _Region] = {}
    for tensor in kept:
        _allocate(tensor, regions)
    for node in ordered:
        if node.view_of is not None:
            node.view_of.views += 1
        for source in node.sources:
            source.children += 1
            if source.is_input:
                _allocate(source, regions)
    for node in ordered:
        for source in node.sources:
            _allocate(source, regions)
        _allocate(node, regions)
        for source in node.sources:
            _release(source, regions)
    return {place: region.used for place, region in regions.items()}


class _Copier:
    """The nodes of a graph, with copies of operands from other places.

    `ordered` has the nodes and the copies; the tensors in `kept` are never freed.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.ordered: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.known: dict[tuple[int, int], Tensor] = {}

    def add(self, split: Sequence[Tensor]) -> None:
        """Add a split: consecutive nodes of one place."""
        place = split[0].place
        results = [node for node in split if node.view_of is None]
        for node in results:
            for source in node.sources:
                if source.place != place and (id(source), place) not in self.known:
                    self._copy(source, place)
        for node in results:
            node.sources = [self.known.get((id(s), place), s) for s in node.sources]
        self.ordered += split

    def ends_before(self, node: Tensor, split: Sequence[Tensor]) -> bool:
        """Return whether a node starts a new split.

        A node whose weight must be copied starts a new split, so that earlier weights can be
        freed.
        """
        if node.view_of is not None:
            return False
        if node.place != split[0].place:
            return True
        return bool(self._new_weights(node) - self._new_weights(split[0]))

    def keep_inputs(self) -> None:
        """Give each batch that is in progress its own inputs."""
        inputs = {id(s): s for node in self.ordered for s in node.sources if s.is_input}
        for tensor in inputs.values():
            tensor.is_kept = True
            self._keep(tensor)

    def _copy(self, source: Tensor, place: int) -> None:
        is_kept = self.copies > 1 or source.is_kept
        copy = self.known[id(source), place] = Tensor(place, source.nbytes, is_kept=is_kept)
        if self.copies > 1:
            self._keep(copy)
        # The operand is needed until it is copied.
        self.ordered.append(Tensor(place, 0, [] if source.is_weight else [source]))
        self.ordered.append(copy)

    def _keep(self, tensor: Tensor) -> None:
        others = (Tensor(tensor.place, tensor.nbytes) for _ in range(self.copies - 1))
        self.kept += [tensor, *others]

    def _new_weights(self, node: Tensor) -> set[int]:
        return {
            id(source)
            for source in node.sources
            if source.is_weight
            and source.place != node.place
            and (id(source), node.place) not in self.known
        }


def _with_copies(nodes: Sequence[Tensor], copies: int) -> tuple[list[Tensor], list[Tensor]]:
    copier = _Copier(copies)
    split: list[Tensor] = []
    for node in nodes:
        if split and copier.ends_before(node, split):
            copier.add(split)
            split = []
        split.append(node)
    copier.add(split)
    if copies > 1:
        copier.keep_inputs()
    return copier.ordered, copier.kept


def _allocate(tensor: Tensor, regions: dict[int, _Region]) -> None:
    if tensor.is_allocated or tensor.view_of is not None or not tensor.nbytes or tensor.is_weight:
        return
    tensor.is_allocated = True
    if tensor.inplace and _overwrite_operand(tensor):
        return
    region = regions.setdefault(tensor.place, _Region())
    tensor.offset = region.take(_padded(tensor.nbytes))


def _overwrite_operand(tensor: Tensor) -> bool:
    """Let a result overwrite an operand that no other result needs; return whether it does."""
    for source in tensor.sources:
        if (
            source.children == 1
            and source.views == 0
            and source.offset >= 0  # never true for a view
            and not source.is_kept
            and source.place == tensor.place
            and source.nbytes == tensor.nbytes
        ):
            tensor.offset, source.offset = source.offset, -1
            return True
    return False


def _release(source: Tensor, regions: dict[int, _Region]) -> None:
    source.children -= 1
    if source.children or source.views:
        return
    owner = source
    if source.view_of is not None:
        owner = source.view_of
        owner.views -= 1
        if owner.views or owner.children:
            return
    if owner.offset >= 0 and not owner.is_kept:
        regions[owner.place].give_back(owner.offset, _padded(owner.nbytes))
        owner.offset = -1


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
