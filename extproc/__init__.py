"""extproc: an Envoy external processor that routes LLM requests to warm prefix caches."""

__version__ = "0.1.0"
