"""Metrics of prompts: how much of them is said to be cached, and how true that was."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from extproc.core.conversation.usage import Usage
from extproc.core.strategies import Prediction

_ERROR_BUCKETS = (-0.5, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class _OfModel(NamedTuple):
    """The metrics of one model's prompts."""

    prompt: Counter
    predicted: Counter
    answered: Counter
    cached: Counter
    error: Histogram


class PromptMetrics:
    """Beforehand by the strategy, then by the answer; of each model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._every = _OfModel(
            prompt=Counter(
                "extproc_prompt_tokens",
                "Tokens of prompts, by their bytes, where the strategy predicts what is cached.",
                ["model"],
                registry=registry,
            ),
            predicted=Counter(
                "extproc_predicted_cached_tokens",
                "Of extproc_prompt_tokens_total, predicted to be in the chosen endpoint's cache.",
                ["model"],
                registry=registry,
            ),
            answered=Counter(
                "extproc_answered_prompt_tokens",
                "Tokens of prompts in answers that say how many were cached, where the strategy "
                "predicts it and Envoy shows the bodies of answers.",
                ["model"],
                registry=registry,
            ),
            cached=Counter(
                "extproc_answered_cached_tokens",
                "Of extproc_answered_prompt_tokens_total, found in the cache.",
                ["model"],
                registry=registry,
            ),
            error=Histogram(
                "extproc_hit_prediction_error",
                "The share of a prompt that was predicted to be cached, less the share that the "
                "answer says was: above 0 where the prefix index believes in too much.",
                ["model"],
                buckets=_ERROR_BUCKETS,
                registry=registry,
            ),
        )
        self._models: dict[str, _OfModel] = {}

    def predicted(self, model: str, prediction: Prediction) -> None:
        """A request was routed."""
        of_model = self._of(model)
        of_model.prompt.inc(prediction.prompt_tokens)
        of_model.predicted.inc(prediction.cached_tokens)

    def answered(self, model: str, usage: Usage, prediction: Prediction | None) -> None:
        """A request was answered; None where the prediction was of another endpoint."""
        tokens, cached = usage
        if cached is None:
            return
        of_model = self._of(model)
        of_model.answered.inc(tokens)
        of_model.cached.inc(cached)
        if prediction is not None:
            of_model.error.observe(prediction.hit - cached / tokens)

    def _of(self, model: str) -> _OfModel:
        found = self._models.get(model)
        if found is None:
            every = self._every
            found = self._models[model] = _OfModel(
                every.prompt.labels(model),
                every.predicted.labels(model),
                every.answered.labels(model),
                every.cached.labels(model),
                every.error.labels(model),
            )
        return found
