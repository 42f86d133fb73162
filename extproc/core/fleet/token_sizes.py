"""How many bytes a token of each model's prompts has, learned from answers that count them."""

from __future__ import annotations

from extproc.core.request.blocks import BYTES_PER_TOKEN

_WEIGHT = 0.02
"""Of one answer: some fifty of them make the mean."""

_LEAST, _MOST = 0.5, 32.0
"""What is beyond is no text."""


class TokenSizes:
    """By model, as long as that has shown any."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}

    def of(self, model: str) -> float:
        """Bytes per token."""
        return self._sizes.get(model, BYTES_PER_TOKEN)

    def observed(self, model: str, size: float, tokens: int) -> None:
        """A prompt of so many bytes was so many tokens."""
        if tokens > 0 and _LEAST <= size / tokens <= _MOST:
            before = self.of(model)
            self._sizes[model] = before + _WEIGHT * (size / tokens - before)
