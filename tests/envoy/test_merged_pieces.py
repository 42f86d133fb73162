"""Merging of each piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.envoy.merge import ConfigurationError, merge
from extproc.envoy.names import Names
from extproc.envoy.template import pieces
from tests.envoy.requests import selected
from tests.envoy.texts import (
    APP,
    CATCH_ALL,
    CLUSTER,
    CORS,
    ENDPOINTS,
    JSON_LOG,
    ROUTER,
    cluster,
    configuration,
    listener,
    manager,
    merged,
    names,
    routes,
)

NEW = [one["name"] for one in yaml.safe_load(pieces(Names()).routes)]
EXAMPLES = Path(__file__).parent / "examples"
LLM = "- match: {prefix: /v1/}\n  route: {cluster: app}\n"


class TestRoutes:
    def test_come_after_specific_ones_and_before_the_catch_all(self) -> None:
        assert names(routes(merged(configuration()))) == ["/app", *NEW, "/"]

    def test_come_last_without_a_catch_all(self) -> None:
        text = configuration([listener(APP)])
        assert names(routes(merged(text))) == ["/app", *NEW]

    def test_come_before_a_route_that_matched_llm_requests(self) -> None:
        result = merge(configuration([listener(LLM + APP)]), endpoints=ENDPOINTS)
        assert names(routes(result.text)) == [*NEW, "/v1/", "/app"]
        assert any("its LLM requests now go to the new routes" in note for note in result.notes)

    def test_stay_after_conditional_routes_with_a_note(self) -> None:
        canary = "- match: {prefix: /, headers: [{name: x-canary, present_match: true}]}\n"
        text = configuration([listener(canary + "  route: {cluster: app}\n" + CATCH_ALL)])
        result = merge(text, endpoints=ENDPOINTS)
        assert names(routes(result.text)) == ["/", *NEW, "/"]
        assert any("get no decision, because it comes first" in note for note in result.notes)

    def test_do_not_match_paths_of_the_users_services(self) -> None:
        api = "- match: {prefix: /api/}\n  route: {cluster: app}\n"
        found = routes(merged(configuration([listener(api)])))
        for path in ("/api/v1/messages", "/api/rerank"):
            assert selected(found, path)["match"] == {"prefix": "/api/"}
            assert selected(found[1:], path) is None

    def test_keep_the_comment_of_the_route_that_follows(self) -> None:
        text = configuration([listener(APP + "# everything else\n" + CATCH_ALL)])
        lines = [line.strip() for line in merged(text).splitlines()]
        assert lines[lines.index("# everything else") + 1] == "- match: {prefix: /}"

    def test_inherit_the_filter_settings_of_the_users_routes(self) -> None:
        guarded = CATCH_ALL + "  typed_per_filter_config: {jwt: {requirement_name: token}}\n"
        found = [
            one for one in routes(merged(configuration([listener(guarded)]))) if one.get("name")
        ]
        assert len(found) == len(NEW)
        for one in found:
            assert one["typed_per_filter_config"]["jwt"] == {"requirement_name": "token"}

    def test_inherit_the_headers_and_rate_limits_of_the_users_routes(self) -> None:
        limited = (
            "- match: {prefix: /}\n  route: {cluster: app, rate_limits: [{actions: []}]}\n"
            "  request_headers_to_add: [{header: {key: x-tier, value: gold}}]\n"
            "  response_headers_to_add: [{header: {key: x-shop, value: café 🛒}}]\n"
        )
        found = [
            one for one in routes(merged(configuration([listener(limited)]))) if one.get("name")
        ]
        for one in found:
            assert one["route"]["rate_limits"] == [{"actions": []}]
            assert one["request_headers_to_add"][0]["header"]["key"] == "x-tier"
            added = {entry["header"]["key"]: entry for entry in one["response_headers_to_add"]}
            assert added["x-shop"]["header"]["value"] == "café 🛒"
            assert len(added) == len(one["response_headers_to_add"])
        text = merged(configuration([listener(limited)]))
        assert merged(text) == text

    @pytest.mark.parametrize("value", ["null", "5", "text", "true", "{}", "{a: b}", "[]"])
    def test_inherit_no_headers_from_null_or_anything_but_a_list_of_them(self, value: str) -> None:
        """Null and an empty list add nothing. Envoy refuses the other values."""
        usual = {one["name"]: one for one in routes(merged(configuration())) if one.get("name")}
        given = CATCH_ALL + f"  response_headers_to_add: {value}\n"
        found = routes(merged(configuration([listener(given)])))
        for one in (one for one in found if one.get("name")):
            key = "response_headers_to_add"
            assert one[key] == usual[one["name"]][key]

    def test_below_a_prefix_match_it_and_remove_it(self) -> None:
        found = routes(merged(configuration(), prefixes=["/team/v1/"]))
        for one in (one for one in found if one.get("name")):
            condition = {"name": ":path", "string_match": {"prefix": "/team/"}}
            assert condition in one["match"]["headers"]
            rewrite = one["route"]["regex_rewrite"]
            assert rewrite == {"pattern": {"regex": "^/team/"}, "substitution": "/"}

    def test_below_two_prefixes_are_added_twice(self) -> None:
        text = merged(configuration(), prefixes=["/a", "/b"])
        assert names(routes(text)) == ["/app", *NEW, *NEW, "/"]

    def test_move_before_an_earlier_catch_all(self) -> None:
        text = merged(configuration([listener(APP)]))
        hidden = text.replace("      - match: {prefix: /app}", "      - match: {prefix: /}")
        assert names(routes(hidden))[0] == "/"
        assert names(routes(merged(hidden))) == [*NEW, "/"]


class TestFilters:
    def test_come_right_before_the_router(self) -> None:
        text = merged(configuration([listener(filters=CORS + ROUTER)]))
        assert [one["name"].split(".")[-1] for one in manager(text)["http_filters"]] == [
            "cors",
            "buffer",
            "ext_proc",
            "router",
        ]

    def test_are_off_for_other_routes(self) -> None:
        found = {one["name"]: one for one in manager(merged(configuration()))["http_filters"]}
        assert found["envoy.filters.http.ext_proc"]["disabled"] is True
        assert found["envoy.filters.http.buffer"]["disabled"] is True

    def test_a_buffer_of_the_user_stays_and_ours_gets_another_name(self) -> None:
        theirs = (
            "- name: envoy.filters.http.buffer\n  typed_config:\n"
            '    "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer\n'
            "    max_request_bytes: 1024\n"
        )
        text = merged(configuration([listener(filters=theirs + CORS + ROUTER)]))
        found = [one["name"] for one in manager(text)["http_filters"]]
        assert found[0] == "envoy.filters.http.buffer"
        assert found[2] == "llm-envoy.filters.http.buffer"
        settings = [one.get("typed_per_filter_config", {}) for one in routes(text)]
        assert any("llm-envoy.filters.http.buffer" in one for one in settings)
        assert not any("envoy.filters.http.buffer" in one for one in settings)

    def test_an_ext_proc_filter_of_another_service_is_refused(self) -> None:
        other = (
            "- name: guard\n  typed_config:\n"
            '    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.'
            "ExternalProcessor\n    grpc_service: {envoy_grpc: {cluster_name: guard}}\n"
        )
        with pytest.raises(ConfigurationError, match="Two ext_proc filters in one chain corrupt"):
            merged(configuration([listener(filters=other + ROUTER)]))


class TestEarlyRemoval:
    MINE = (
        "early_header_mutation_extensions:\n- name: mine\n  typed_config:\n"
        '    "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.'
        "header_mutation.v3.HeaderMutation\n    mutations:\n    - remove: x-mine\n"
    )

    def removed(self, text: str) -> list[str]:
        (extension,) = manager(text)["early_header_mutation_extensions"]
        return [one["remove"] for one in extension["typed_config"]["mutations"]]

    def test_is_added(self) -> None:
        assert "x-target-endpoint" in self.removed(merged(configuration()))

    def test_is_merged_with_mutations_of_the_user(self) -> None:
        text = merged(configuration([listener(more=self.MINE)]))
        assert self.removed(text) == [
            "x-mine",
            "x-target-endpoint",
            "x-target-endpoint-fallback",
            "x-gateway-destination-endpoint",
        ]


class TestLocalReplies:
    def test_come_after_the_mappers_of_the_user(self) -> None:
        mine = (
            "local_reply_config:\n  mappers:\n"
            "  - filter: {response_flag_filter: {flags: [UH]}}\n    status_code: 502\n"
        )
        found = manager(merged(configuration([listener(more=mine)])))["local_reply_config"]
        assert found["mappers"][0]["status_code"] == 502
        assert len(found["mappers"]) == 5

    def test_are_for_llm_paths_only(self) -> None:
        for one in manager(merged(configuration()))["local_reply_config"]["mappers"]:
            path = one["filter"]["and_filter"]["filters"][0]["header_filter"]["header"]
            assert path["string_match"]["safe_regex"]["regex"].startswith("/v1/((chat/)?")


class TestAccessLog:
    def fields(self, text: str) -> Any:
        return manager(text)["access_log"][0]["typed_config"]["log_format"]["json_format"]

    def test_in_json_gets_the_decision(self) -> None:
        found = self.fields(merged(configuration([listener(log=JSON_LOG)])))
        assert found["status"] == "%RESPONSE_CODE%"
        assert found["endpoint"] == "%DYNAMIC_METADATA(extproc:endpoint)%"

    def test_keeps_fields_of_the_user(self) -> None:
        log = JSON_LOG.replace("status:", "model:")
        result = merge(configuration([listener(log=log)]), endpoints=ENDPOINTS)
        assert self.fields(result.text)["model"] == "%RESPONSE_CODE%"
        assert any("access log field 'model'" in note for note in result.notes)

    def test_in_text_stays_unchanged_with_a_note(self) -> None:
        log = JSON_LOG.split("    log_format")[0]
        result = merge(configuration([listener(log=log)]), endpoints=ENDPOINTS)
        assert "log_format" not in str(manager(result.text)["access_log"])
        assert any("no access log in JSON" in note for note in result.notes)


class TestClusters:
    def test_get_other_names_if_the_user_has_the_names(self) -> None:
        theirs = CLUSTER.format(name="fallback") + CLUSTER.format(name="extproc")
        text = merged(configuration(clusters=theirs))
        assert cluster(text, "fallback") == yaml.safe_load(CLUSTER.format(name="fallback"))[0]
        assert cluster(text, "llm-fallback")["load_assignment"]["cluster_name"] == "llm-fallback"
        (_, asked, _) = manager(text)["http_filters"]
        named = asked["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
        assert named == "llm-extproc"
        assert {one["route"]["cluster"] for one in routes(text) if one.get("name")} == {
            "chosen",
            "llm-fallback",
        }

    def test_raise_an_error_if_all_names_are_in_use(self) -> None:
        theirs = CLUSTER.format(name="fallback") + CLUSTER.format(name="llm-fallback")
        with pytest.raises(ConfigurationError, match="rename one of them"):
            merged(configuration(clusters=theirs))

    def test_have_the_given_addresses(self) -> None:
        text = merged(configuration(), sidecar="unix:/run/e.sock", endpoints=["vllm:8000"])
        assert cluster(text, "fallback")["type"] == "STRICT_DNS"
        assert "'vllm'" in str(cluster(text, "fallback"))
        assert "/run/e.sock" in str(cluster(text, "extproc"))

    def test_need_the_servers_addresses_in_the_first_run(self) -> None:
        with pytest.raises(ConfigurationError, match="give --endpoint HOST:PORT"):
            merge(configuration())
        text = merged(configuration(), sidecar="10.9.9.9:9002")
        assert merge(text).text == text

    def test_change_only_their_addresses(self) -> None:
        text = merged(configuration()).replace("lb_policy: LEAST_REQUEST", "lb_policy: RANDOM")
        found = cluster(merged(text, endpoints=["10.0.0.3:8000"]), "fallback")
        assert found["lb_policy"] == "RANDOM"
        assert "10.0.0.3" in str(found)
        assert "10.0.0.1" not in str(found)
