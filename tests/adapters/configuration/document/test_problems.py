from __future__ import annotations

from typing import get_args

import pytest

from extproc.core.schema import StrategyName
from tests.adapters.configuration.document.texts import (
    LLAMA,
    prefix_hash,
    problems,
    with_endpoints,
    with_key,
)

MODEL_KEYS = (
    "known are name, aliases, servedName, answerAsRequested, responseIds, endpoints, service, "
    "inferencePool, split, adapters, "
    "discoverAdapters, loadBalancing, flowControl"
)


NO_ONE_SOURCE = "models[0]: give one of 'endpoints', 'service', 'inferencePool' and 'split'"


NO_CHAIN = "the strategy 'Chain' needs a 'chain', and no other strategy can have one"


NO_NAME = "is not a Kubernetes name: use lowercase letters, digits, '-' and '.'"


STRATEGIES = ", ".join(get_args(StrategyName))


SOURCES = "FirstUserMessage, SystemAndFirstUserMessage, PromptHead, Session, Header:<name>"


SESSIONS = "models[0].loadBalancing.prefixHash.sessionSources"


NO_SESSION = "is not 'Header:<name>', 'Body:<field>' or 'Body:<field>.<field>'"


def session(sources: str) -> str:
    return prefix_hash(f"prefixSource: Session, sessionSources: {sources}")


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
        (
            with_key("loadBalancing: {prefixHash: {replication: 0200}}"),
            "line 4, column 45: '0200' means 128 in YAML 1.1; write a number without leading "
            "zeros and colons, and a text in quotes",
        ),
        (
            "models: [{name: 2:05, endpoints: ['10.0.0.1:1']}]",
            "line 1, column 17: '2:05' means 125 in YAML 1.1; write a number without leading "
            "zeros and colons, and a text in quotes",
        ),
        (
            "models: [{name: unknown, endpoints: ['10.0.0.1:1']}]",
            "models[0].name: 'unknown' stands for unknown models in metrics; choose another name",
        ),
        (
            "models: [{name: ' ', endpoints: ['10.0.0.1:1']}]",
            "models[0].name: ' ' begins or ends with white space",
        ),
        (
            "models:\n- name: |\n    a\n  endpoints: ['10.0.0.1:1']\n",
            "models[0].name: 'a\\n' begins or ends with white space",
        ),
        (
            "models: [{name: \"a\\0b\", endpoints: ['10.0.0.1:1']}]",
            "models[0].name: 'a\\x00b' has a control character, '\\x00'",
        ),
        (
            with_key('aliases: [ok, "a\\tb"]'),
            "models[0].aliases[1]: 'a\\tb' has a control character, '\\t'",
        ),
        (
            with_key('adapters: ["a\\x7fb"]'),
            "models[0].adapters[0]: 'a\\x7fb' has a control character, '\\x7f'",
        ),
        (
            with_key('servedName: "a\\x85b"'),
            "models[0].servedName: 'a\\x85b' has a control character, '\\x85'",
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
