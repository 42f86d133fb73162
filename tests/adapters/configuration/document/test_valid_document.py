from __future__ import annotations

import pytest

from extproc.adapters.configuration.document import parse
from extproc.core.schema import InferencePoolSpec, NamedEndpoints, ServiceSpec
from tests.adapters.configuration.document.texts import LLAMA


class TestValidDocument:
    def test_reads_every_key(self) -> None:
        spec = parse(
            b"""
models:
- name: llama-3.1-8b-instruct-fp8-l4      # what requests put in "model"
  aliases: [llama]
  endpoints: [127.0.0.1:8001, 127.0.0.1:8002]
  adapters: [sql-lora]
  loadBalancing:
    strategy: PrefixHash
    prefixHash:
      {meanLoadFactor: 150, prefixCharLength: 64, replication: 32, prefixSource: PromptHead}
"""
        )
        (model,) = spec.models
        assert model.name == "llama-3.1-8b-instruct-fp8-l4"
        assert model.aliases == ("llama",)
        assert model.endpoints == ("127.0.0.1:8001", "127.0.0.1:8002")
        assert model.adapters == ("sql-lora",)
        assert model.load_balancing.strategy == "PrefixHash"
        prefix_hash = model.load_balancing.prefix_hash
        assert prefix_hash.mean_load_factor == 150
        assert prefix_hash.prefix_char_length == 64
        assert prefix_hash.replication == 32
        assert prefix_hash.prefix_source == "PromptHead"

    def test_can_omit_optional_keys(self) -> None:
        (model,) = parse(LLAMA.encode()).models
        assert (model.aliases, model.adapters, model.service) == ((), (), None)
        assert model.load_balancing.strategy == "PrefixHash"
        assert model.load_balancing.prefix_hash.mean_load_factor == 125

    def test_accepts_kubeai_block_unchanged(self) -> None:
        block = """
  loadBalancing:
    strategy: PrefixHash
    prefixHash:
      meanLoadFactor: 125
      replication: 256
      prefixCharLength: 100
"""
        (model,) = parse((LLAMA + block.lstrip("\n")).encode()).models
        assert model.load_balancing == parse(LLAMA.encode()).models[0].load_balancing

    @pytest.mark.parametrize("port", ["http", 8000])
    def test_can_name_service_instead_of_endpoints(self, port: str | int) -> None:
        text = f"models: [{{name: a, service: {{namespace: inference, name: vllm, port: {port}}}}}]"
        (model,) = parse(text.encode()).models
        assert model.endpoints is None
        assert model.service == ServiceSpec(namespace="inference", name="vllm", port=port)

    def test_can_quote_port_number_as_templates_do(self) -> None:
        text = 'models: [{name: a, service: {namespace: n, name: s, port: "8000"}}]'
        (model,) = parse(text.encode()).models
        assert model.service == ServiceSpec(namespace="n", name="s", port=8000)

    def test_can_name_inference_pool_instead_of_endpoints(self) -> None:
        text = "models: [{name: a, inferencePool: {namespace: inference, name: vllm-llama}}]"
        (model,) = parse(text.encode()).models
        pool = InferencePoolSpec(namespace="inference", name="vllm-llama")
        assert (model.inference_pool, model.source) == (pool, pool)
        assert (model.endpoints, model.service) == (None, None)

    def test_can_contain_ipv6_addresses(self) -> None:
        text = "models: [{name: a, endpoints: ['[::1]:8000', '[2001:db8::a]:8000']}]"
        assert parse(text.encode()).models[0].endpoints == ("[::1]:8000", "[2001:db8::a]:8000")

    def test_can_mix_host_names_and_addresses(self) -> None:
        text = """
models:
- name: a
  endpoints: [vllm-a:8000, "My-Svc.ns.svc.cluster.local.:8000", 10.0.3.7:8000, project_vllm_1:80]
"""
        (model,) = parse(text.encode()).models
        assert model.endpoints == (
            "vllm-a:8000",
            "my-svc.ns.svc.cluster.local.:8000",
            "10.0.3.7:8000",
            "project_vllm_1:80",
        )
        assert model.source == NamedEndpoints(model.endpoints)

    def test_can_list_no_endpoints(self) -> None:
        (model,) = parse(b"models: [{name: a, endpoints: []}]").models
        assert (model.endpoints, model.source) == ((), None)

    def test_can_use_anchors_and_merges(self) -> None:
        text = """
models:
- &first {name: a, endpoints: [10.0.0.1:8000], loadBalancing: &by-load {strategy: LeastLoad}}
- {<<: *first, name: b}
- {name: c, endpoints: [10.0.0.2:8000], loadBalancing: *by-load}
"""
        assert [m.load_balancing.strategy for m in parse(text.encode()).models] == ["LeastLoad"] * 3

    def test_can_be_json(self) -> None:
        assert parse(b'{"models": [{"name": "a", "endpoints": ["10.0.0.1:1"]}]}').models

    def test_can_list_one_endpoint_under_two_models(self) -> None:
        assert (
            len(parse((LLAMA + "- {name: b, endpoints: [10.0.0.1:8000]}\n").encode()).models) == 2
        )
