"""A filter that hides secret texts in a stream of bytes."""

from __future__ import annotations

from collections.abc import Collection

_HIDDEN = b"***"


class SecretFilter:
    """A stream of bytes in which secret texts are replaced by stars.

    The end of what was fed is held back if it can be the beginning of a secret.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        texts = (text.encode("utf-8", "surrogateescape") for text in secrets)
        self._secrets = sorted(texts, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the next part of the stream without secrets."""
        if not self._secrets:
            return data
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, _HIDDEN)
        count = max(self._beginning_at_end(data, secret) for secret in self._secrets)
        self._held = data[len(data) - count :]
        return data[: len(data) - count]

    def end(self) -> bytes:
        """Return the rest of the stream."""
        rest, self._held = self._held, b""
        return rest

    @staticmethod
    def _beginning_at_end(data: bytes, secret: bytes) -> int:
        """Return how many bytes at the end are a beginning of the secret."""
        longest = min(len(secret) - 1, len(data))
        return next((n for n in range(longest, 0, -1) if data.endswith(secret[:n])), 0)
