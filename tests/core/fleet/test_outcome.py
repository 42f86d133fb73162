"""The details are those that Envoy 1.40 was seen to give; docs/envoy.md has the table."""

from __future__ import annotations

import pytest

from extproc.core.fleet.outcome import Outcome, outcome_of

RESET = "upstream_reset_before_response_started"


class TestAnAnswerOfTheUpstreamItself:
    @pytest.mark.parametrize("details", ["via_upstream", ""])
    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    def test_is_an_error_where_the_endpoint_failed(self, status: int, details: str) -> None:
        assert outcome_of(status, details) is Outcome.ERROR

    @pytest.mark.parametrize("details", ["via_upstream", ""])
    @pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 404, 413, 422, 429, 501, 505])
    def test_is_service_whatever_the_client_did_and_however_busy_it_is(
        self, status: int, details: str
    ) -> None:
        assert outcome_of(status, details) is Outcome.SERVED

    def test_without_a_status_says_nothing(self) -> None:
        assert outcome_of(0, "") is None


class TestAnAnswerOfEnvoys:
    @pytest.mark.parametrize(
        ("status", "why"),
        [
            (503, "remote_connection_failure|delayed_connect_error:_Connection_refused"),
            (503, "connection_timeout"),
            (503, "connection_termination"),
            (502, "protocol_error"),
        ],
    )
    def test_may_say_that_no_answer_came_over_the_connection(self, status: int, why: str) -> None:
        assert outcome_of(status, f"{RESET}{{{why}}}") is Outcome.RESET

    def test_may_say_that_there_was_nobody_left_to_retry_on(self) -> None:
        assert outcome_of(503, "no_healthy_upstream") is Outcome.RESET

    @pytest.mark.parametrize("details", ["response_timeout", "upstream_per_try_timeout"])
    def test_may_say_that_none_came_in_time(self, details: str) -> None:
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
    def test_may_be_about_something_else(self, status: int, details: str) -> None:
        assert outcome_of(status, details) is None
