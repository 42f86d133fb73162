from __future__ import annotations

import logging

import pytest

from extproc.adapters.configuration import read
from extproc.adapters.models_document import DocumentError, parse
from tests.adapters.documents import LLAMA, QWEN, Served

BY_SERVICE = b"models: [{name: a, service: {namespace: n, name: s, port: http}}]"


def test_a_document_takes_effect_whole() -> None:
    served = Served()
    served.configuration.apply(read(LLAMA))
    assert served.models == ["llama"]
    served.configuration.apply(read(QWEN))
    assert served.models == ["qwen"]
    assert served.sample("extproc_config_reloads_total", result="success") == 2
    assert served.sample("extproc_config_last_reload_successful") == 1


def test_what_did_not_change_keeps_its_strategy_and_its_leases() -> None:
    served = Served()
    served.configuration.apply(read(LLAMA))
    strategy = served.router.catalog.models["llama"].strategy
    served.router.decide(served.router.place("llama", None, {}))
    served.configuration.apply(read(LLAMA))
    assert served.router.catalog.models["llama"].strategy is strategy
    assert sum(served.router.ledger.loads.values()) == 1


@pytest.mark.parametrize("problem", [DocumentError(["models: is required"]), OSError(2, "gone")])
def test_a_refusal_leaves_the_last_good_in_force_and_says_so_once(
    problem: DocumentError | OSError, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served()
    served.configuration.apply(read(LLAMA))
    with caplog.at_level(logging.ERROR):
        served.configuration.refuse(problem, "models.yaml")
    assert served.models == ["llama"]
    assert served.sample("extproc_config_reloads_total", result="failure") == 1
    assert served.sample("extproc_config_last_reload_successful") == 0
    (record,) = caplog.records
    assert record.__dict__["fields"] == {"source": "models.yaml", "why": problem}


def test_a_good_document_after_a_bad_one_is_a_success_again() -> None:
    served = Served()
    served.configuration.refuse(DocumentError(["no"]), "models.yaml")
    served.configuration.apply(read(LLAMA))
    assert served.sample("extproc_config_last_reload_successful") == 1


def test_a_service_is_a_valid_document_that_this_version_cannot_serve() -> None:
    assert parse(BY_SERVICE).models[0].service is not None
    with pytest.raises(DocumentError) as refused:
        read(BY_SERVICE)
    (problem,) = refused.value.problems
    assert problem.startswith("models[0].service: ")
