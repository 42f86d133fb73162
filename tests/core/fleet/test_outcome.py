"""The details are those observed of Envoy 1.40; docs/envoy.md has the table."""

from __future__ import annotations

import pytest

from extproc.core.fleet.outcome import Outcome, outcome_of

RESET = "upstream_reset_before_response_started"


class TestUpstreamResponse:
    @pytest.mark.parametrize("details", ["via_upstream", ""])
    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    def test_with_a_server_failure_is_an_error(self, status: int, details: str) -> None:
        assert outcome_of(status, details) is Outcome.ERROR

    @pytest.mark.parametrize("details", ["via_upstream", ""])
    @pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 404, 413, 422, 429, 501, 505])
    def test_with_any_other_status_is_served(self, status: int, details: str) -> None:
        assert outcome_of(status, details) is Outcome.SERVED

    def test_without_a_status_has_no_outcome(self) -> None:
        assert outcome_of(0, "") is None


class TestEnvoysOwnResponse:
    @pytest.mark.parametrize(
        ("status", "why"),
        [
            (503, "remote_connection_failure|delayed_connect_error:_Connection_refused"),
            (503, "connection_timeout"),
            (503, "connection_termination"),
            (502, "protocol_error"),
        ],
    )
    def test_after_a_reset_is_a_reset(self, status: int, why: str) -> None:
        assert outcome_of(status, f"{RESET}{{{why}}}") is Outcome.RESET

    def test_without_an_endpoint_for_the_retry_is_a_reset(self) -> None:
        assert outcome_of(503, "no_healthy_upstream") is Outcome.RESET

    @pytest.mark.parametrize("details", ["response_timeout", "upstream_per_try_timeout"])
    def test_after_a_timeout_is_a_timeout(self, details: str) -> None:
        assert outcome_of(504, details) is Outcome.TIMEOUT

    @pytest.mark.parametrize(
        ("status", "details"),
        [
            (503, RESET + "{overflow}"),
            (507, "request_payload_exceeded_retry_buffer_limit"),
            (408, "request_overall_timeout"),
            (504, "max_duration_timeout"),
            (500, "ext_proc_error_gRPC_error_14"),
        ],
    )
    def test_for_other_reasons_has_no_outcome(self, status: int, details: str) -> None:
        assert outcome_of(status, details) is None
