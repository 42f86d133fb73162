from __future__ import annotations

from extproc.core.flow_control.model_flow import ModelFlow


def test_a_mean_of_zero_tokens_is_known() -> None:
    flow = ModelFlow("llama")
    for _ in range(50):
        flow.dispatched("10.0.0.1:8000", 0.0)
    flow.dispatched("10.0.0.1:8000", 10_000.0)
    assert flow.to_compute == 200.0


def test_the_first_requests_count_equally() -> None:
    flow = ModelFlow("llama")
    for tokens in (100.0, 300.0):
        flow.dispatched("10.0.0.1:8000", tokens)
    assert flow.to_compute == 200.0
