"""What of a model decides how long things take: the bytes that move."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024.0**3


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """Bytes of a model, in the mean over its layers; the defaults are a typical 30B-A3B.

    Attributes:
        layers: how many layers may give their experts (or whole weights) to the host.
        movable_bytes: what one such layer gives.
        read_bytes: what is read of it for one generated token.
        fixed_read_bytes: what is read of everything else for one generated token.
        kv_bytes: what one token takes in an f16 cache, over all layers.
        is_known: whether the figures are this model's.
    """

    layers: int = 48
    movable_bytes: float = 0.36 * GIB
    read_bytes: float = 0.0225 * GIB
    fixed_read_bytes: float = 0.6 * GIB
    kv_bytes: float = 98304.0
    is_known: bool = False
