"""Merging as a whole: updates, listeners and layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.envoy import envoy_configuration
from extproc.envoy.lint import lint
from extproc.envoy.merge import ConfigurationError, merge
from extproc.envoy.names import Names
from extproc.envoy.template import pieces
from tests.envoy.texts import (
    APP,
    JSON_LOG,
    cluster,
    configuration,
    listener,
    manager,
    merged,
    names,
    routes,
)
from tests.manifests.test_envoy import assert_valid

NEW = [one["name"] for one in yaml.safe_load(pieces(Names()).routes)]
EXAMPLES = Path(__file__).parent / "examples"
LLM = "- match: {prefix: /v1/}\n  route: {cluster: app}\n"


def test_every_line_of_the_user_stays_in_its_order() -> None:
    before = configuration([listener(log=JSON_LOG)])
    after = iter(merged(before).splitlines())
    assert all(line in after for line in before.splitlines())


def test_envoy_accepts_the_result(tmp_path: Path) -> None:
    assert_valid(yaml.safe_load(merged(configuration())), tmp_path)


@pytest.mark.parametrize("prefixes", [(), ("/team",), ("/", "/team/v1", "/a.b/c")], ids=str)
def test_envoy_accepts_the_result_with_prefixes(tmp_path: Path, prefixes: Any) -> None:
    text = merged(configuration(), prefixes=prefixes)
    assert_valid(yaml.safe_load(text), tmp_path)
    assert merged(text) == text


class TestUpdates:
    def test_the_recommended_configuration_has_all_pieces(self) -> None:
        text = envoy_configuration().read_text()
        assert merge(text).text == text

    def test_the_configuration_of_version_0_1_0_becomes_the_recommended_one(
        self, tmp_path: Path
    ) -> None:
        text = (EXAMPLES / "version-0.1.0.yaml").read_text()
        found = {one.problem for one in lint(text)}
        assert "no retry on connect-failure" in found
        assert "response_header_mode is SKIP" in found
        after = merge(text).text
        assert lint(after) == []
        assert_valid(yaml.safe_load(after), tmp_path)
        assert names(routes(after)) == NEW
        fallback = cluster(after, "fallback")
        assert fallback["load_assignment"] == cluster(text, "fallback")["load_assignment"]
        assert merge(after).text == after

    def test_tuned_values_stay(self) -> None:
        text = merged(configuration()).replace("num_retries: 2", "num_retries: 5")
        text = text.replace("message_timeout: 2s", "message_timeout: 3s")
        assert merged(text) == text

    def test_older_piece_is_updated_in_place(self) -> None:
        new = merged(configuration())
        old = new.replace("response_header_mode: SEND", "response_header_mode: SKIP")
        lines = old.splitlines(keepends=True)
        old = "".join(line for line in lines if "retry_policy: {retry_on" not in line)
        assert old != new
        assert merged(old) == new

    def test_missing_piece_is_added_again(self) -> None:
        new = merged(configuration())
        lines = new.splitlines(keepends=True)
        start = next(i for i, line in enumerate(lines) if "early_header_mutation_ext" in line)
        after = merged("".join(lines[: start - 4] + lines[start + 8 :]))
        assert yaml.safe_load(after) == yaml.safe_load(new)


class TestListeners:
    def test_that_only_redirect_stay_unchanged(self) -> None:
        redirect = "- match: {prefix: /}\n  redirect: {https_redirect: true}\n"
        text = configuration([listener(redirect, name="plain"), listener()])
        after = merged(text)
        assert manager(after, 0) == manager(text, 0)
        assert len(manager(after, 1)["http_filters"]) == 3

    def test_that_share_a_virtual_host_all_get_the_pieces(self) -> None:
        text = merged(configuration([listener(name="tcp"), listener(name="quic")]))
        assert len(manager(text, 0)["http_filters"]) == 3
        assert routes(text, 0) == routes(text, 1)

    def test_that_differ_must_be_named(self) -> None:
        text = configuration([listener(name="a"), listener(APP, name="b")])
        with pytest.raises(ConfigurationError, match="a/site, b/site; choose one with --listener"):
            merged(text)
        after = merged(text, listeners=["b"])
        assert manager(after, 0) == manager(text, 0)
        assert names(routes(after, 1)) == ["/app", *NEW]

    def test_that_are_unknown_are_listed(self) -> None:
        with pytest.raises(ConfigurationError, match="no listener 'x': there are edge"):
            merged(configuration(), listeners=["x"])

    def test_without_the_virtual_host_are_an_error(self) -> None:
        with pytest.raises(ConfigurationError, match="no virtual host 'x' in listener edge"):
            merged(configuration(), virtual_host="x")

    def test_with_routes_from_rds_are_an_error(self) -> None:
        text = configuration([listener(more="rds: {route_config_name: r}\n")])
        with pytest.raises(ConfigurationError, match="listener edge gets its routes from RDS"):
            merged(text)

    def test_from_lds_are_an_error(self) -> None:
        with pytest.raises(ConfigurationError, match="no static listener"):
            merged("dynamic_resources: {lds_config: {ads: {}}}\n")


class TestLayouts:
    def test_json_stays_json(self) -> None:
        text = json.dumps(yaml.safe_load(configuration([listener(log=JSON_LOG)])), indent=2)
        after = merged(text)
        assert names(json.loads(after) and routes(after)) == ["/app", *NEW, "/"]
        assert merged(after) == after

    def test_windows_line_ends_stay(self) -> None:
        after = merged(configuration().replace("\n", "\r\n"))
        assert after.count("\n") == after.count("\r\n")
        assert after.replace("\r\n", "\n") == merged(configuration())

    def test_file_may_lack_the_last_line_end(self) -> None:
        after = merged(configuration().rstrip("\n"))
        assert yaml.safe_load(after) == yaml.safe_load(merged(configuration()))

    def test_anchor_in_a_replaced_piece_moves_to_its_next_use(self) -> None:
        text = merged(configuration())
        text = text.replace("circuit_breakers: &extproc_breakers", "circuit_breakers: &mine")
        text = text.replace("*extproc_breakers", "*mine")
        text = text.replace("use_http_header: true, ", "")
        after = yaml.safe_load(merged(text))["static_resources"]["clusters"]
        assert after == yaml.safe_load(merged(configuration()))["static_resources"]["clusters"]

    @pytest.mark.parametrize("empty", ["routes:", "routes: ~", "routes: []", "routes: # none"])
    def test_empty_list_of_routes_is_replaced(self, empty: str) -> None:
        text = configuration([listener("")]).replace("routes:", empty)
        assert names(routes(merged(text))) == NEW

    @pytest.mark.parametrize("wrong", ["routes: x", "routes: {a: b}"])
    def test_value_that_is_not_a_list_is_refused(self, wrong: str) -> None:
        text = configuration([listener("")]).replace("routes:", wrong)
        with pytest.raises(ConfigurationError, match="routes has an unexpected value"):
            merged(text)
