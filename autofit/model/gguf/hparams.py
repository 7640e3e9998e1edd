"""A model's hyperparameters by their GGUF keys, and a check of their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.model.gguf.header import GgufHeader

# Far above any real model, and low enough that arithmetic with it ends.
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


class Hparams:
    """The metadata of a model's architecture; keys are without its prefix."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.architecture = str(metadata.get("general.architecture", "unknown"))
        self._metadata = metadata

    def has(self, key: str) -> bool:
        """Return whether the file has a value for the key."""
        return self._get(key) is not None

    def integer(self, key: str, default: int = 0) -> int:
        """Return a number or the largest of a list, or the default if absent; at least 0."""
        value = self._get(key)
        if isinstance(value, tuple):
            return max(map(_size, value), default=default)
        return _size(value) if isinstance(value, int) else default

    def per_block(self, key: str, blocks: int, default: Sequence[int]) -> list[int]:
        """Return a number for each block, from a list, a single number or the defaults."""
        value = self._get(key)
        if isinstance(value, tuple):
            listed = [_size(entry) for entry in value[:blocks]]
            return listed + list(default[len(listed) :])
        return [_size(value)] * blocks if isinstance(value, int) else list(default)

    def is_list(self, key: str) -> bool:
        """Return whether the file lists a value for each block."""
        return isinstance(self._get(key), tuple)

    def _get(self, key: str) -> Any:  # noqa: ANN401 - metadata can be anything
        return self._metadata.get(f"{self.architecture}.{key}")


def _size(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int) else 0


def check_hparams(header: GgufHeader) -> None:
    """Check that the sizes in a file's metadata are possible.

    Raises:
        UsageError: all faults together, each with its key.
    """
    hparams = Hparams(header.metadata)
    faults = [
        f"{header.files[0]}: {hparams.architecture}.{key} is {hparams.integer(key)}: {rule}"
        for key, rule in _faults(hparams, [tensor.name for tensor in header.tensors])
    ]
    if faults:
        raise UsageError("\n".join(faults), "the file is damaged: download or convert it again")


def _faults(hparams: Hparams, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, largest in _LARGEST.items():
        if hparams.integer(key) > largest:
            yield key, f"must be at most {largest}"
    for key in _NEVER_ZERO:
        if hparams.has(key) and not hparams.integer(key):
            yield key, "must be at least 1"
    heads = "attention.head_count"
    if (
        hparams.has(heads)
        and not hparams.integer(heads)
        and any(_QUERY.search(name) for name in names)
    ):
        yield heads, "must be at least 1, because its blocks have attention"
    experts = hparams.integer("expert_count")
    # llama.cpp asserts the same when it loads (`llama-model.cpp`).
    if experts and not 1 <= hparams.integer("expert_used_count") <= experts:
        yield "expert_used_count", f"must be 1 to {experts}, the expert_count"
    if hparams.has("expert_count") and not experts and any("_exps." in name for name in names):
        yield "expert_count", "must be at least 1, because its blocks have experts"
