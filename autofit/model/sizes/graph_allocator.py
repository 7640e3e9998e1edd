"""Plans the buffer that a computation graph needs on each device, as ggml's allocator does.

Follows `ggml-alloc.c` (best fit, results written over an operand that nothing else needs) and
the splitting of `ggml-backend.cpp` (operands from another device are copied at the start of
the stretch that needs them). It knows nothing of models: `compute_buffer` makes graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ALIGNMENT = 128
_ENDLESS = 1 << 62


class Tensor:
    """A result in a graph: its bytes, what it is made from, the device that makes it.

    A view has no bytes of its own but those of the tensor it looks at. `inplace` results may
    take the place of an operand of the same size. A weight has a device and is never allocated
    there; it is copied to the device that uses it. An `is_input` is allocated before all else.
    """

    __slots__ = (
        "children",
        "device",
        "inplace",
        "is_input",
        "is_kept",
        "is_owned",
        "is_weight",
        "nbytes",
        "offset",
        "sources",
        "view_of",
        "views",
    )

    def __init__(
        self,
        device: int,
        nbytes: int,
        sources: Iterable[Tensor] = (),
        *,
        view_of: Tensor | None = None,
        inplace: bool = False,
        is_input: bool = False,
        is_weight: bool = False,
        is_kept: bool = False,
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.sources = list(sources)
        self.view_of: Tensor | None = (view_of.view_of or view_of) if view_of else None
        self.inplace = inplace
        self.is_input = is_input
        self.is_weight = is_weight
        self.is_kept = is_kept
        self.offset = -1
        self.is_owned = False
        self.children = 0
        self.views = 0


class _Region:
    """The free stretches of one device's buffer, by address, and how far it was used."""

    def __init__(self) -> None:
        self.free: list[list[int]] = [[0, _ENDLESS]]
        self.used = 0

    def take(self, size: int) -> int:
        """The smallest stretch that fits, the endless last one only if there is no other."""
        best = min(
            (stretch for stretch in self.free[:-1] if stretch[1] >= size),
            key=lambda stretch: (stretch[1], -stretch[0]),
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
        """Free a stretch, joined with its free neighbours."""
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


def buffer_bytes(nodes: Sequence[Tensor], copies: int = 1) -> dict[int, int]:
    """Bytes of the buffer each device needs to compute the nodes in their order.

    Args:
        nodes: results, each after what it is made from; they cannot be planned again.
        copies: how many times operands from other devices are kept, so that several batches
            are under way; one without pipeline parallelism.
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
    return {device: region.used for device, region in regions.items()}


class _Copier:
    """Puts copies of operands from elsewhere into a graph.

    `ordered` are the nodes with their copies, `kept` what is never freed.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.ordered: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.known: dict[tuple[int, int], Tensor] = {}

    def add(self, stretch: Sequence[Tensor]) -> None:
        """Nodes of one device that are computed in one go."""
        device = stretch[0].device
        made = [node for node in stretch if node.view_of is None]
        for node in made:
            for source in node.sources:
                if source.device != device and (id(source), device) not in self.known:
                    self._copy(source, device)
        for node in made:
            node.sources = [self.known.get((id(s), device), s) for s in node.sources]
        self.ordered += stretch

    def ends_before(self, node: Tensor, stretch: Sequence[Tensor]) -> bool:
        """Whether a node begins a new stretch.

        One with a weight that has to be copied does, so that the weight before it can go.
        """
        if node.view_of is not None:
            return False
        if node.device != stretch[0].device:
            return True
        return bool(self._new_weights(node) - self._new_weights(stretch[0]))

    def keep_inputs(self) -> None:
        """With several batches under way, each has its own inputs."""
        inputs = {id(s): s for node in self.ordered for s in node.sources if s.is_input}
        for tensor in inputs.values():
            tensor.is_kept = True
            self._keep(tensor)

    def _copy(self, source: Tensor, device: int) -> None:
        is_kept = self.copies > 1 or source.is_kept
        copy = self.known[id(source), device] = Tensor(device, source.nbytes, is_kept=is_kept)
        if self.copies > 1:
            self._keep(copy)
        # The operand lives until it has been copied.
        self.ordered.append(Tensor(device, 0, [] if source.is_weight else [source]))
        self.ordered.append(copy)

    def _keep(self, tensor: Tensor) -> None:
        others = (Tensor(tensor.device, tensor.nbytes) for _ in range(self.copies - 1))
        self.kept += [tensor, *others]

    def _new_weights(self, node: Tensor) -> set[int]:
        return {
            id(source)
            for source in node.sources
            if source.is_weight
            and source.device != node.device
            and (id(source), node.device) not in self.known
        }


def _with_copies(nodes: Sequence[Tensor], copies: int) -> tuple[list[Tensor], list[Tensor]]:
    copier = _Copier(copies)
    stretch: list[Tensor] = []
    for node in nodes:
        if stretch and copier.ends_before(node, stretch):
            copier.add(stretch)
            stretch = []
        stretch.append(node)
    copier.add(stretch)
    if copies > 1:
        copier.keep_inputs()
    return copier.ordered, copier.kept


def _allocate(tensor: Tensor, regions: dict[int, _Region]) -> None:
    if tensor.is_owned or tensor.view_of is not None or not tensor.nbytes or tensor.is_weight:
        return
    tensor.is_owned = True
    if tensor.inplace and _take_over(tensor):
        return
    region = regions.setdefault(tensor.device, _Region())
    tensor.offset = region.take(_padded(tensor.nbytes))


def _take_over(tensor: Tensor) -> bool:
    """Whether an operand's place became the tensor's."""
    for source in tensor.sources:
        owner = source.view_of or source
        is_last = source.children == 1 and source.views == 0
        if source is not owner:
            is_last = is_last and owner.views == 1 and owner.children == 0
        if (
            is_last
            and owner.offset >= 0
            and not owner.is_kept
            and owner.device == tensor.device
            and source.nbytes == owner.nbytes == tensor.nbytes
        ):
            tensor.offset, owner.offset = owner.offset, -1
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
        regions[owner.device].give_back(owner.offset, _padded(owner.nbytes))
        owner.offset = -1


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
