from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.configuration.document import MAX_BYTES, DocumentError, parse
from extproc.core.schema import InferencePoolSpec, NamedEndpoints, ServiceSpec, StrategyName
from tests.extent import extent

LLAMA = "models:\n- name: llama\n  endpoints: [10.0.0.1:8000]\n"

MODEL_KEYS = (
    "known are name, aliases, servedName, answerAsRequested, responseIds, endpoints, service, "
    "inferencePool, split, adapters, "
    "discoverAdapters, loadBalancing"
)

NO_ONE_SOURCE = "models[0]: give one of 'endpoints', 'service', 'inferencePool' and 'split'"
NO_CHAIN = "the strategy 'Chain' needs a 'chain', and no other strategy can have one"
NO_NAME = "is not a Kubernetes name: use lowercase letters, digits, '-' and '.'"
STRATEGIES = ", ".join(get_args(StrategyName))
SOURCES = "FirstUserMessage, SystemAndFirstUserMessage, PromptHead, Session, Header:<name>"
SESSIONS = "models[0].loadBalancing.prefixHash.sessionSources"
NO_SESSION = "is not 'Header:<name>', 'Body:<field>' or 'Body:<field>.<field>'"


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(DocumentError) as refused:
        parse(text.encode() if isinstance(text, str) else text)
    return list(refused.value.problems)


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


def with_key(text: str) -> str:
    """Return the valid model with one more line."""
    return f"{LLAMA}  {text}\n"


def prefix_hash(text: str) -> str:
    return with_key(f"loadBalancing: {{prefixHash: {{{text}}}}}")


def session(sources: str) -> str:
    return prefix_hash(f"prefixSource: Session, sessionSources: {sources}")


def with_endpoints(text: str) -> str:
    return f"models: [{{name: a, endpoints: [{text}]}}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the document must be a mapping with the key 'models'"),
        ("[]", "the document must be a mapping with the key 'models'"),
        ("{}", "models: is required"),
        ("models: []", "models: is empty; list at least one model"),
        ("models: [{endpoints: ['10.0.0.1:1']}]", "models[0].name: is required"),
        (
            "models: [{name: '', endpoints: ['10.0.0.1:1']}]",
            "models[0].name: String should have at least 1 character",
        ),
        (
            f"models: [{{name: {'x' * 257}, endpoints: ['10.0.0.1:1']}}]",
            "models[0].name: String should have at most 256 characters",
        ),
        (
            "models: [{name: 7, endpoints: ['10.0.0.1:1']}]",
            "models[0].name: must be a string, not 7",
        ),
        ("models: [{name: a}]", NO_ONE_SOURCE),
        (
            "models: [{name: a, endpoints: ['10.0.0.1:1'], "
            "service: {namespace: a, name: b, port: 1}}]",
            NO_ONE_SOURCE,
        ),
        (
            "models: [{name: a, endpoints: ['10.0.0.1:1'], "
            "inferencePool: {namespace: a, name: b}}]",
            NO_ONE_SOURCE,
        ),
        (
            "models: [{name: a, service: {namespace: a, name: b, port: 1}, "
            "inferencePool: {namespace: a, name: b}}]",
            NO_ONE_SOURCE,
        ),
        (
            with_endpoints("vllm"),
            "models[0].endpoints[0]: 'vllm' has no port; give IP:PORT or HOST:PORT",
        ),
        (
            with_endpoints("'10.0.0.1'"),
            "models[0].endpoints[0]: '10.0.0.1' has no port; give IP:PORT or HOST:PORT",
        ),
        (
            with_endpoints("'[::1]'"),
            "models[0].endpoints[0]: '[::1]' has no port; give IP:PORT or HOST:PORT",
        ),
        (
            with_endpoints("'http://vllm:8000'"),
            "models[0].endpoints[0]: 'http://vllm:8000' is not HOST:PORT; leave out the scheme and "
            "the path",
        ),
        (
            with_endpoints("'vllm:http'"),
            "models[0].endpoints[0]: 'vllm:http': the port must be a number from 1 to 65535",
        ),
        (
            with_endpoints("'vllm a:80'"),
            "models[0].endpoints[0]: 'vllm a:80': 'vllm a' is neither an IP address nor a host "
            "name",
        ),
        (
            with_endpoints("'10.0.0.256:80'"),
            "models[0].endpoints[0]: '10.0.0.256:80': '10.0.0.256' is neither an IP address nor a "
            "host name",
        ),
        (
            with_endpoints("'fd00::x:80'"),
            "models[0].endpoints[0]: 'fd00::x:80' is neither IP:PORT nor HOST:PORT; write IPv6 as "
            "[IP]:PORT",
        ),
        (
            with_endpoints("'0.0.0.0:8000'"),
            "models[0].endpoints[0]: '0.0.0.0:8000': 0.0.0.0 is not the address of a server",
        ),
        (
            with_endpoints("'VLLM:80', 'vllm:80'"),
            "models[0].endpoints: 'vllm:80' is listed twice",
        ),
        (
            with_endpoints("'10.0.0.1:1', '10.0.0.1:http'"),
            "models[0].endpoints[1]: '10.0.0.1:http': the port must be a number from 1 to 65535",
        ),
        (
            with_endpoints("'10.0.0.1:65536'"),
            "models[0].endpoints[0]: '10.0.0.1:65536': the port must be a number from 1 to 65535",
        ),
        (
            with_endpoints("'::1:8000'"),
            "models[0].endpoints[0]: '::1:8000': put an IPv6 address, and no other, in brackets",
        ),
        (
            with_endpoints("'[::1]:80', '[0::1]:80'"),
            "models[0].endpoints: '[::1]:80' is listed twice",
        ),
        (with_key("aliases: [x, x]"), "models[0].aliases: 'x' is listed twice"),
        (with_key("adapters: [x, x]"), "models[0].adapters: 'x' is listed twice"),
        (
            with_key("aliases: [1]"),
            "models[0].aliases[0]: must be a string, not 1",
        ),
        (
            LLAMA + "model: 1\n",
            "model: unknown key, did you mean 'models'?; known are models",
        ),
        (
            with_key("adaptors: [x]"),
            f"models[0].adaptors: unknown key, did you mean 'adapters'?; {MODEL_KEYS}",
        ),
        (
            with_key("load_balancing: {}"),
            f"models[0].load_balancing: unknown key, did you mean 'loadBalancing'?; {MODEL_KEYS}",
        ),
        (with_key("zzz: 1"), f"models[0].zzz: unknown key; {MODEL_KEYS}"),
        (
            with_key("loadBalancing: {strategi: Random}"),
            "models[0].loadBalancing.strategi: unknown key, did you mean 'strategy'?; "
            "known are strategy, prefixHash, chain, signals",
        ),
        (
            prefix_hash("mean_load_factor: 125"),
            "models[0].loadBalancing.prefixHash.mean_load_factor: unknown key, "
            "did you mean 'meanLoadFactor'?; "
            "known are meanLoadFactor, prefixCharLength, replication, prefixSource, sessionSources",
        ),
        (
            with_key("loadBalancing: {strategy: prefixhash}"),
            f"models[0].loadBalancing.strategy: 'prefixhash' is not one of {STRATEGIES}, "
            "did you mean 'PrefixHash'?",
        ),
        (
            with_key("loadBalancing: {strategy: Zzz}"),
            f"models[0].loadBalancing.strategy: 'Zzz' is not one of {STRATEGIES}",
        ),
        (
            LLAMA + "  loadBalancing: {strategy: LeastQue}\n",
            f"models[0].loadBalancing.strategy: 'LeastQue' is not one of {STRATEGIES}, "
            "did you mean 'LeastQueue'?",
        ),
        (
            LLAMA + "  loadBalancing: {strategy: Chain}\n",
            f"models[0].loadBalancing: {NO_CHAIN}",
        ),
        (
            LLAMA + "  loadBalancing: {chain: [{filter: LeastQueue}]}\n",
            f"models[0].loadBalancing: {NO_CHAIN}",
        ),
        (
            LLAMA + "  loadBalancing: {strategy: Chain, chain: [{filter: LeastQeue}]}\n",
            "models[0].loadBalancing.chain[0].filter: 'LeastQeue' is not one of LowLatency, "
            "LoraAffinity, LeastQueue, LeastKVCache, PrefixHash, did you mean 'LeastQueue'?",
        ),
        (
            LLAMA + "  loadBalancing: {strategy: Chain, chain: [{filter: LeastQueue, "
            "maxQueue: 5}]}\n",
            "models[0].loadBalancing.chain[0]: the filter LeastQueue has no 'maxQueue'",
        ),
        (
            LLAMA + "  loadBalancing: {strategy: Chain, chain: [{filter: LowLatency, slack: x}]}\n",
            "models[0].loadBalancing.chain[0].slack: must be a number, not 'x'",
        ),
        (
            LLAMA + "  loadBalancing: {signals: {staleAfterSeconds: 0.5}}\n",
            "models[0].loadBalancing.signals: 'staleAfterSeconds' must be at least twice as long "
            "as both intervals",
        ),
        (
            LLAMA + "  loadBalancing: {strategy: Chain, chain: [{filter: LeastKVCache, "
            "slack: 5}]}\n",
            "models[0].loadBalancing.chain[0]: 'slack' is a share of the cache: give a number "
            "from 0 to 1",
        ),
        (
            LLAMA + "- {name: canary, split: {targets: [{model: lama, weight: 1}]}}\n",
            "models[1].split.targets[0].model: 'lama' is no model or adapter of this document, "
            "did you mean 'llama'?",
        ),
        (
            LLAMA + "- {name: canary, split: {targets: [{model: canary, weight: 1}]}}\n",
            "models[1].split.targets[0].model: 'canary' is no model or adapter of this document",
        ),
        (
            LLAMA + "- {name: canary, split: {targets: [{model: llama, weight: 0}]}}\n",
            "models[1].split.targets: at least one target must have a weight above 0",
        ),
        (
            LLAMA + "- {name: canary, split: {targets: [{model: llama, weight: 1}]}, "
            "loadBalancing: {}}\n",
            "models[1]: a split has no servers: set 'loadBalancing' on its targets",
        ),
        (
            prefix_hash("meanLoadFactor: 99"),
            "models[0].loadBalancing.prefixHash.meanLoadFactor: "
            "Input should be greater than or equal to 100",
        ),
        (
            prefix_hash("meanLoadFactor: '125'"),
            "models[0].loadBalancing.prefixHash.meanLoadFactor: must be a whole number, not '125'",
        ),
        (
            prefix_hash("meanLoadFactor: true"),
            "models[0].loadBalancing.prefixHash.meanLoadFactor: must be a whole number, not True",
        ),
        (
            prefix_hash("replication: 0"),
            "models[0].loadBalancing.prefixHash.replication: "
            "Input should be greater than or equal to 1",
        ),
        (
            prefix_hash("replication: 5000"),
            "models[0].loadBalancing.prefixHash.replication: "
            "Input should be less than or equal to 4096",
        ),
        (
            prefix_hash("prefixCharLength: 0"),
            "models[0].loadBalancing.prefixHash.prefixCharLength: "
            "Input should be greater than or equal to 1",
        ),
        (
            prefix_hash("prefixSource: LastUserMessage"),
            "models[0].loadBalancing.prefixHash.prefixSource: "
            f"'LastUserMessage' is not one of {SOURCES}, did you mean 'FirstUserMessage'?",
        ),
        (
            prefix_hash("prefixSource: 'Header:'"),
            f"models[0].loadBalancing.prefixHash.prefixSource: 'Header:' is not one of {SOURCES}",
        ),
        (
            prefix_hash("prefixSource: 'Header::path'"),
            "models[0].loadBalancing.prefixHash.prefixSource: "
            f"'Header::path' is not one of {SOURCES}",
        ),
        (
            session("[x-session-id]"),
            f"{SESSIONS}[0]: 'x-session-id' {NO_SESSION}, did you mean 'Header:x-session-id'?",
        ),
        (
            session("['Body:user', user]"),
            f"{SESSIONS}[1]: 'user' {NO_SESSION}, did you mean 'Body:user'?",
        ),
        (
            session("['header:X-Session']"),
            f"{SESSIONS}[0]: 'header:X-Session' {NO_SESSION}, did you mean 'Header:x-session'?",
        ),
        (
            session("['Body:session-id.x.y']"),
            f"{SESSIONS}[0]: 'Body:session-id.x.y' {NO_SESSION}",
        ),
        (
            session("['Body:previous_response_id']"),
            f"{SESSIONS}[0]: 'Body:previous_response_id' changes with every turn, so it does not "
            "identify a session",
        ),
        (
            session("['Body:messages']"),
            f"{SESSIONS}[0]: 'Body:messages' is part of the prompt; use another 'prefixSource' to "
            "read it",
        ),
        (session("[7]"), f"{SESSIONS}[0]: must be a string, not 7"),
        (session("[]"), f"{SESSIONS}: is empty; list at least one source"),
        (
            session("['Header:X', 'Header:x']"),
            f"{SESSIONS}: 'Header:x' is listed twice",
        ),
        (
            prefix_hash("sessionSources: ['Header:x']"),
            "models[0].loadBalancing.prefixHash: 'sessionSources' needs 'prefixSource: Session'",
        ),
        (
            prefix_hash("prefixSource: session"),
            "models[0].loadBalancing.prefixHash.prefixSource: "
            f"'session' is not one of {SOURCES}, did you mean 'Session'?",
        ),
        (
            "models: [{name: a, service: {namespace: a, name: b}}]",
            "models[0].service.port: is required",
        ),
        (
            "models: [{name: a, service: {namespace: a, name: b, port: 0}}]",
            "models[0].service.port: give the port's name or its number, from 1 to 65535",
        ),
        (
            "models: [{name: a, service: {namespace: a, name: b, port: true}}]",
            "models[0].service.port: give the port's name or its number, from 1 to 65535",
        ),
        (
            "models: [{name: a, service: {namespace: a, name: b, port: ''}}]",
            "models[0].service.port: give the port's name or its number, from 1 to 65535",
        ),
        (
            "models: [{name: a, service: {namespace: a/b, name: b, port: 1}}]",
            f"models[0].service.namespace: 'a/b' {NO_NAME}",
        ),
        (
            "models: [{name: a, service: {namespace: a, name: '', port: 1}}]",
            f"models[0].service.name: '' {NO_NAME}",
        ),
        (
            "models: [{name: a, service: {namespace: a, name: 7, port: 1}}]",
            "models[0].service.name: must be a string, not 7",
        ),
        (
            "models: [{name: a, inferencePool: {namespace: a}}]",
            "models[0].inferencePool.name: is required",
        ),
        (
            "models: [{name: a, inferencePool: {namespace: a, name: Pool}}]",
            f"models[0].inferencePool.name: 'Pool' {NO_NAME}",
        ),
        (
            "models: [{name: a, inferencePool: {namespace: a, name: b, port: 1}}]",
            "models[0].inferencePool.port: unknown key; known are namespace, name",
        ),
        (
            LLAMA + "- {name: llama, endpoints: ['10.0.0.2:1']}\n",
            "models[1].name: the name 'llama' is already taken by models[0].name",
        ),
        (
            with_key("aliases: [llama]"),
            "models[0].aliases[0]: the name 'llama' is already taken by models[0].name",
        ),
        (
            with_key("adapters: [q]") + "- {name: q, endpoints: ['10.0.0.2:1']}\n",
            "models[1].name: the name 'q' is already taken by models[0].adapters[0]",
        ),
        ("models: []\nmodels: []\n", "line 2, column 1: the key 'models' comes twice"),
        (with_key("name: other"), "line 4, column 3: the key 'name' comes twice"),
        ("models: [\n", "line 2, column 1: did not find expected node content"),
        ("models: *x", "line 1, column 9: found undefined alias"),
        ("---\na: 1\n---\nb: 1", "line 3, column 1: but found another document"),
        (
            "models: !!python/object:os.system x",
            "line 1, column 9: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'",
        ),
    ],
)
def test_problem_is_one_line_with_its_location(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_all_problems_are_reported_together() -> None:
    assert problems("models: [{name: a}, {nam: b, endpoints: [x]}]\nfoo: 1\n") == [
        NO_ONE_SOURCE,
        "models[1].name: is required",
        "models[1].endpoints[0]: 'x' has no port; give IP:PORT or HOST:PORT",
        f"models[1].nam: unknown key, did you mean 'name'?; {MODEL_KEYS}",
        "foo: unknown key; known are models",
    ]


def test_long_value_is_shortened() -> None:
    (problem,) = problems(with_key(f"aliases: {'x' * 1000}"))
    assert len(problem) < 200


class TestHostileDocument:
    def test_larger_than_a_config_map_is_refused(self) -> None:
        assert parse(LLAMA.encode().ljust(MAX_BYTES)).models
        assert problems(LLAMA.encode().ljust(MAX_BYTES + 1)) == [
            "the document has 1048577 bytes; 1048576 are allowed"
        ]

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(b"models: \x00", id="control character"),
            pytest.param(b"models: \xff\xff\xff", id="bad UTF-8"),
            pytest.param(b'models: [{name: "\\ud800"}]', id="lone surrogate"),
            pytest.param(b"models: 2001-99-99", id="impossible date"),
            pytest.param(b"models: " + b"9" * 5000, id="5,000 digits"),
            pytest.param(b"models: " + b"[" * 3000 + b"]" * 3000, id="deep"),
            pytest.param(b"models: &a [*a]", id="a list within itself"),
            pytest.param(b"&a {models: *a}", id="a mapping within itself"),
            pytest.param(b"{models: [], 1: 2}", id="a number as a key"),
            pytest.param(b"{models: [], ~: 2}", id="null as a key"),
            pytest.param(b"{models: [], ? [a] : 2}", id="a list as a key"),
            pytest.param(b"{models: [], ? {a: b} : 2}", id="a mapping as a key"),
            pytest.param(b"models: !!bool maybe", id="invalid boolean"),
            pytest.param(b"models: !!int foo", id="invalid integer"),
            pytest.param(b"models: !!int ''", id="an empty integer"),
            pytest.param(b"models: !!float ''", id="an empty float"),
            pytest.param(b"models: !!timestamp foo", id="invalid date"),
            pytest.param(b"models: !!binary '='", id="invalid base64"),
            pytest.param(b"models: !!map x", id="invalid mapping"),
        ],
    )
    def test_is_refused_with_a_problem(self, text: bytes) -> None:
        assert problems(text)

    def test_exponential_aliases_use_no_memory(self) -> None:
        code = (
            "import resource\n"
            "from extproc.adapters.configuration.document import DocumentError, parse\n"
            "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
            "lines = ['models:', '- &a0 [' + 'x, ' * 9 + ']']\n"
            "lines += [f'- &a{i + 1} [' + f'*a{i}, ' * 9 + ']' for i in range(9)]\n"
            "try: parse('\\n'.join(lines).encode())\n"
            "except DocumentError: print('refused')\n"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (run.returncode, run.stdout) == (0, "refused\n"), run.stderr

    def test_deep_nesting_does_not_crash_the_process(self) -> None:
        # In its own process: a parser that overflows the C stack ends the process at once.
        code = (
            "from extproc.adapters.configuration.document import DocumentError, parse\n"
            "try: parse(b'[' * 500_000)\n"
            "except DocumentError: print('refused')\n"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (run.returncode, run.stdout) == (0, "refused\n")

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param('"a\\nb": 1\nmodels: []', id="a key"),
            pytest.param(with_key('"a\\nb": 1'), id="a key of a model"),
            pytest.param(with_key('aliases: ["a\\nb", "a\\nb"]'), id="an alias"),
            pytest.param(with_endpoints('"a\\nb:1"'), id="an endpoint"),
            pytest.param(with_key('loadBalancing: {strategy: "a\\nb"}'), id="a strategy"),
            pytest.param('models: *"a\n', id="an anchor"),
        ],
    )
    def test_each_problem_is_one_line(self, text: str) -> None:
        assert all(len(problem.splitlines()) == 1 for problem in problems(text))

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("models:", id="no models"),
            pytest.param("models: x", id="text as models"),
            pytest.param("models: [x]", id="text as a model"),
            pytest.param("models: [[]]", id="list as a model"),
            pytest.param("models: [{name: a, endpoints: '10.0.0.1:1'}]", id="one endpoint"),
            pytest.param(with_key("aliases:"), id="no aliases"),
            pytest.param(with_key("loadBalancing:"), id="no loadBalancing"),
            pytest.param(with_key("loadBalancing: {prefixHash: [1]}"), id="a list for prefixHash"),
        ],
    )
    def test_problem_uses_terms_of_yaml_instead_of_python(self, text: str) -> None:
        for problem in problems(text):
            assert not re.search(r"tuple|dictionary|instance|[A-Za-z]+Spec", problem), problem


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.datetimes(),
    st.binary(max_size=5),
    st.text(max_size=5),
    st.sampled_from(["10.0.0.1:8000", "[::1]:1", "PrefixHash", "Header:x", "a", "http"]),
)
known_keys = st.sampled_from(
    [
        *["models", "name", "aliases", "endpoints", "service", "inferencePool", "adapters"],
        "loadBalancing",
        *["strategy", "prefixHash", "meanLoadFactor", "prefixCharLength", "replication"],
        *["prefixSource", "sessionSources", "namespace", "port"],
    ]
)
keys = known_keys | st.text(max_size=5) | st.integers() | st.none() | st.dates()


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)


anything = st.recursive(scalars, containers, max_leaves=12)
documents = anything | st.fixed_dictionaries(
    {
        "models": st.lists(
            st.fixed_dictionaries(
                {"name": anything},
                optional={
                    "endpoints": st.lists(scalars, max_size=2) | anything,
                    "aliases": anything,
                    "service": anything,
                    "inferencePool": anything,
                    "loadBalancing": st.dictionaries(known_keys, anything, max_size=3),
                },
            ),
            max_size=3,
        )
    }
)


def taken_or_refused(text: bytes) -> tuple[object, ...]:
    """Return the models or the problems; any other exception fails the test."""
    try:
        models: tuple[object, ...] = parse(text).models
    except DocumentError as refused:
        models = refused.problems
    assert models
    return models


@settings(max_examples=extent(75, 300))
@given(documents)
def test_any_document_is_accepted_or_refused_with_reasons(document: object) -> None:
    try:
        text = yaml.safe_dump(document, allow_unicode=True).encode()
    except (yaml.YAMLError, UnicodeEncodeError):
        return
    assert all(taken_or_refused(text))


@settings(max_examples=extent(75, 300))
@given(
    st.binary()
    | st.lists(
        st.sampled_from(
            [
                *["models", ":", " ", "\n", "- ", "[", "]", "{", "}", "'", '"', "&a", "*a", "<<"],
                *["!!str ", "!!seq ", "|", ">", "%", "#", "~", ",", "a"],
            ]
        )
    ).map(lambda parts: "".join(parts).encode())
)
def test_any_text_is_accepted_or_refused(text: bytes) -> None:
    assert all(taken_or_refused(text))
