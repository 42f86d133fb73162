"""Bytes per prompt token of each model, learned from the token counts in responses."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.request.blocks import BYTES_PER_TOKEN

_WEIGHT = 0.02
"""Weight of one response in the mean: about fifty count."""

_LEAST, _MOST = 0.5, 32.0
"""Bytes per token beyond these limits mean that the prompt is not text."""


class TokenSizes:
    """Bytes per token by model."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}

    def of(self, model: str) -> float:
        """Return the bytes per token, or the default before the first response."""
        return self._sizes.get(model, BYTES_PER_TOKEN)

    @property
    def learned(self) -> Mapping[str, float]:
        """The bytes per token of the models whose responses had token counts."""
        return self._sizes

    def adopt(self, model: str, size: float) -> None:
        """Take over what another sidecar learned, unless this one learned a value itself."""
        if _LEAST <= size <= _MOST:
            self._sizes.setdefault(model, size)

    def record(self, model: str, size: float, tokens: int) -> None:
        """Record a prompt of `size` bytes that had this number of tokens."""
        if tokens > 0 and _LEAST <= size / tokens <= _MOST:
            before = self.of(model)
            self._sizes[model] = before + _WEIGHT * (size / tokens - before)
