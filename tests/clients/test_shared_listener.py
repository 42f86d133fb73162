"""The shipped configuration in a listener shared with other routes, JWT, rate limits and TLS."""

from __future__ import annotations

import base64
import copy
import json
import time
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.clients import sdks
from tests.clients.sdk import FAST, arrived, asked, client, run
from tests.e2e.scene import MODEL, Json, Options, Scene, manager_of

ALLOWED = 3
"""The number of requests that the limited route accepts in an hour."""

AUTHORITY = trustme.CA()
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
FILTERS = "type.googleapis.com/envoy.extensions.filters.http"


def encoded(data: bytes) -> str:
    """Return URL-safe base64 without padding, as JWT requires."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token() -> str:
    """Return a JWT that the listener accepts."""
    head = {"alg": "RS256", "typ": "JWT", "kid": "k"}
    claims = {"iss": "test", "exp": int(time.time()) + 3600}
    signed = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    signature = KEY.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{encoded(signature)}"


def jwt_filter() -> Json:
    """Return a filter that requires a token on the paths of the API only."""
    numbers = KEY.public_key().public_numbers()
    key = {
        "kty": "RSA",
        "kid": "k",
        "alg": "RS256",
        "n": encoded(numbers.n.to_bytes(256, "big")),
        "e": encoded(numbers.e.to_bytes(3, "big")),
    }
    provider = {"issuer": "test", "local_jwks": {"inline_string": json.dumps({"keys": [key]})}}
    rule = {"match": {"prefix": "/v1"}, "requires": {"provider_name": "test"}}
    return {
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": f"{FILTERS}.jwt_authn.v3.JwtAuthentication",
            "providers": {"test": {**provider, "forward": True}},
            "rules": [rule],
        },
    }


def limiting(requests: int) -> Json:
    """Return a rate limit whose tokens are not refilled during the test."""
    always = {"default_value": {"numerator": 100}, "runtime_key": "test"}
    return {
        "@type": f"{FILTERS}.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "limit",
        "token_bucket": {"max_tokens": requests, "fill_interval": "3600s"},
        "filter_enabled": always,
        "filter_enforced": always,
    }


def share_listener(config: Json) -> None:
    """Add other routes and filters before the shipped ones, and a listener with TLS."""
    resources, manager = config["static_resources"], manager_of(config)
    found = next(one for one in resources["clusters"] if one["name"] == "fallback")
    resources["clusters"].append({**copy.deepcopy(found), "name": "app"})
    host = manager["route_config"]["virtual_hosts"][0]
    ok = {"status": 200, "body": {"inline_string": "fine"}}
    app = {"cluster": "app", "prefix_rewrite": "/health"}
    host["routes"][:0] = [
        {"match": {"path": "/healthz"}, "direct_response": ok},
        {"match": {"path": "/app/upload"}, "route": {"cluster": "app"}},
        {"match": {"path": "/app"}, "route": app},
    ]
    name = "envoy.filters.http.local_ratelimit"
    limited = next(one for one in host["routes"] if one.get("name") == "fallback")
    limited = copy.deepcopy(limited)
    limited["match"]["headers"] = [{"name": "x-limited", "present_match": True}]
    limited["typed_per_filter_config"][name] = limiting(ALLOWED)
    host["routes"].insert(0, limited)
    unlimited = limiting(1_000_000)
    manager["http_filters"][:0] = [jwt_filter(), {"name": name, "typed_config": unlimited}]
    resources["listeners"].append(tls_listener(resources["listeners"][0]))


def tls_listener(plain: Json) -> Json:
    """Return the same listener over TLS, which offers HTTP/2."""
    listener = {**copy.deepcopy(plain), "name": "tls"}
    issued = AUTHORITY.issue_cert("localhost")
    (chain,) = issued.cert_chain_pems
    certificate = {
        "certificate_chain": {"inline_bytes": base64.b64encode(chain.bytes()).decode()},
        "private_key": {"inline_bytes": base64.b64encode(issued.private_key_pem.bytes()).decode()},
    }
    listener["filter_chains"][0]["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
            ".DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificates": [certificate],
            },
        },
    }
    return listener


OPTIONS = Options(change_config=share_listener, replica_arguments=FAST)


@pytest.fixture(scope="module")
def allowed(scene: Scene) -> sdks.openai.OpenAI:
    """OpenAI's SDK with a token as its key."""
    return client(scene, api_key=token())


def sidecar_streams(scene: Scene) -> int:
    """Return the number of requests that Envoy has sent to the sidecar."""
    stats = run(scene.envoy.stats("ext_proc.streams_started"))
    return stats["http.llm.ext_proc.streams_started"]


def decisions(scene: Scene) -> float:
    """Return the number of requests for which the sidecar has chosen an endpoint."""
    labels = {"model": MODEL, "outcome": "routed", "strategy": OPTIONS.strategy}
    return run(scene.metric("extproc_requests_total", **labels))


def test_other_routes_do_not_use_the_sidecar(scene: Scene) -> None:
    before = sidecar_streams(scene)
    with httpx.Client(base_url=scene.envoy.url) as http:
        assert http.get("/healthz").text == "fine"
        assert http.get("/app").status_code == 200
        # The body is larger than Envoy's buffers.
        upload = http.post("/app/upload", content=b"x" * 20_000_000)
        assert upload.headers["x-stand-in-body-bytes"] == "20000000"
        assert http.get("/elsewhere").status_code == 404
    assert sidecar_streams(scene) == before


def test_request_with_a_token_is_routed(scene: Scene, allowed: sdks.openai.OpenAI) -> None:
    before = sidecar_streams(scene)
    assert allowed.chat.completions.create(**asked("hello")).choices
    assert allowed.chat.completions.create(**asked("x" * 1_000_000)).choices
    assert [model.id for model in allowed.models.list()] == [MODEL]
    assert sidecar_streams(scene) == before + 3


def test_request_without_a_token_is_refused_before_routing(
    scene: Scene, gpt: sdks.openai.OpenAI, sonnet: sdks.anthropic.Anthropic
) -> None:
    before = arrived(scene), decisions(scene)
    with pytest.raises(sdks.openai.AuthenticationError):
        gpt.chat.completions.create(**asked("hello"))
    with pytest.raises(sdks.anthropic.AuthenticationError):
        sonnet.messages.create(**asked("hello"))
    assert (arrived(scene), decisions(scene)) == before


def test_request_over_the_rate_limit_is_refused_before_routing(scene: Scene) -> None:
    before = decisions(scene)
    headers = {"x-limited": "yes"}
    with client(scene, api_key=token(), default_headers=headers) as gpt:
        for _ in range(ALLOWED):
            assert gpt.chat.completions.create(**asked("hello")).choices
        with pytest.raises(sdks.openai.RateLimitError):
            gpt.chat.completions.create(**asked("hello"))
    assert decisions(scene) == before + ALLOWED


@pytest.mark.parametrize("http2", [False, True])
def test_sdk_works_over_tls(scene: Scene, http2: bool) -> None:
    context: Any = httpx.create_ssl_context()
    AUTHORITY.configure_trust(context)
    with httpx.Client(verify=context, http2=http2) as http:
        url = f"https://localhost:{scene.envoy.ports['tls']}/v1"
        gpt = sdks.openai.OpenAI(base_url=url, api_key=token(), max_retries=0, http_client=http)
        raw = gpt.chat.completions.with_raw_response.create(**asked("x" * 1_000_000))
        assert raw.http_response.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        chunks = gpt.chat.completions.create(**asked("hello", tokens=9), stream=True)
        assert len("".join(chunk.choices[0].delta.content or "" for chunk in chunks)) == 9 * 4
