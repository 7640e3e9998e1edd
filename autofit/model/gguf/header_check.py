"""Sizes of a model that cannot be, found before anything is computed from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from autofit.errors import UsageError
from autofit.model.gguf.header import GgufHeader
from autofit.model.sizes.cache_shape import Hparams

# Far above any real model and far below what makes arithmetic endless.
_LARGEST = {
    "embedding_length": 1 << 24,
    "feed_forward_length": 1 << 28,
    "expert_feed_forward_length": 1 << 28,
    "expert_count": 1 << 16,
    "expert_used_count": 1 << 16,
    "attention.head_count": 1 << 16,
    "attention.head_count_kv": 1 << 16,
    "attention.key_length": 1 << 20,
    "attention.value_length": 1 << 20,
    "context_length": 1 << 40,
    "vocab_size": 1 << 32,
}
_QUERY = re.compile(r"\.attn_q(kv|_a)?\.")
_NEVER_ZERO = ("block_count", "embedding_length")


def check_header(header: GgufHeader) -> None:
    """Compare the sizes that a file's metadata tells with what a model can have.

    Raises:
        UsageError: all faults together, each with its key.
    """
    hparams = Hparams(header.metadata)
    faults = [
        f"{header.files[0]}: {hparams.architecture}.{key} is {hparams.integer(key)}: {wanted}"
        for key, wanted in _faults(hparams, [tensor.name for tensor in header.tensors])
    ]
    if faults:
        raise UsageError("\n".join(faults), "the file is damaged: fetch or convert it again")


def _faults(hparams: Hparams, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, largest in _LARGEST.items():
        if hparams.integer(key) > largest:
            yield key, f"no model has more than {largest}"
    for key in _NEVER_ZERO:
        if hparams.has(key) and not hparams.integer(key):
            yield key, "a model has at least 1"
    heads = "attention.head_count"
    if (
        hparams.has(heads)
        and not hparams.integer(heads)
        and any(_QUERY.search(name) for name in names)
    ):
        yield heads, "its blocks have attention"
    experts = hparams.integer("expert_count")
    # As llama.cpp demands when it loads (`llama-model.cpp`).
    if experts and not 1 <= hparams.integer("expert_used_count") <= experts:
        yield "expert_used_count", f"must be 1 to {experts}, the expert_count"
    if hparams.has("expert_count") and not experts and any("_exps." in name for name in names):
        yield "expert_count", "its blocks have experts"
