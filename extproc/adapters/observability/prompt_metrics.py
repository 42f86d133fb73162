"""Metrics of prompts: the predicted and the actual cache hits."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from extproc.core.conversation.usage import Usage
from extproc.core.strategies import Prediction

_ERROR_BUCKETS = (-0.5, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class _ModelMetrics(NamedTuple):
    """The metrics of one model's prompts."""

    prompt: Counter
    predicted: Counter
    answered: Counter
    cached: Counter
    error: Histogram


class PromptTotals(NamedTuple):
    """Tokens of one model's prompts, as in the metrics of the same names."""

    prompt: float
    predicted: float
    answered: float
    cached: float


class PromptMetrics:
    """Predictions by the strategy and usage reported by responses, for each model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._every = _metrics(registry)
        self._models: dict[str, _ModelMetrics] = {}

    def predicted(self, model: str, prediction: Prediction) -> None:
        """Count the prediction for a routed request."""
        metrics = self._metrics_of(model)
        metrics.prompt.inc(prediction.prompt_tokens)
        metrics.predicted.inc(prediction.cached_tokens)

    def answered(self, model: str, usage: Usage, prediction: Prediction | None) -> None:
        """Count the usage of a response; no `prediction` if it was for another endpoint."""
        tokens, cached = usage
        if cached is None:
            return
        metrics = self._metrics_of(model)
        metrics.answered.inc(tokens)
        metrics.cached.inc(cached)
        if prediction is not None:
            metrics.error.observe(prediction.hit - cached / tokens)

    def totals(self, model: str) -> PromptTotals | None:
        """Return the token counts of a model; None if it has none."""
        found = self._models.get(model)
        return found and PromptTotals(*(_value(counter) for counter in found[:4]))

    def _metrics_of(self, model: str) -> _ModelMetrics:
        found = self._models.get(model)
        if found is None:
            every = self._every
            found = self._models[model] = _ModelMetrics(
                every.prompt.labels(model),
                every.predicted.labels(model),
                every.answered.labels(model),
                every.cached.labels(model),
                every.error.labels(model),
            )
        return found


def _value(counter: object) -> float:
    assert isinstance(counter, Counter)
    (family,) = counter.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_total"))


def _metrics(registry: CollectorRegistry) -> _ModelMetrics:
    return _ModelMetrics(
        prompt=_counter(
            registry,
            "extproc_prompt_tokens",
            "Prompt tokens, estimated from bytes, if the strategy predicts cache hits.",
        ),
        predicted=_counter(
            registry,
            "extproc_predicted_cached_tokens",
            "Tokens of extproc_prompt_tokens_total that are predicted to be cached.",
        ),
        answered=_counter(
            registry,
            "extproc_answered_prompt_tokens",
            "Prompt tokens of responses that report cached tokens, if the strategy predicts "
            "cache hits and Envoy forwards response bodies.",
        ),
        cached=_counter(
            registry,
            "extproc_answered_cached_tokens",
            "Tokens of extproc_answered_prompt_tokens_total that were cached.",
        ),
        error=_error(registry),
    )


def _counter(registry: CollectorRegistry, name: str, documentation: str) -> Counter:
    return Counter(name, documentation, ["model"], registry=registry)


def _error(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "extproc_hit_prediction_error",
        "Predicted share of a prompt in the cache, minus the share that the response "
        "reports: above 0 if the prefix index is too optimistic.",
        ["model"],
        buckets=_ERROR_BUCKETS,
        registry=registry,
    )
