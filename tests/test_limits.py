"""Each limit of the reference has the number that the code has, and a test in which somebody meets it."""

import re
from pathlib import Path

import pytest
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.cluster import DRAINED_MAX
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED
from coordinatord.core.shown.log_sources import WORKERS_AT_ONCE_MAX
from coordinatord.protocol.fields import DURATION_S_MAX, LAST_LINES_MAX, LINE_MAX, NAME_MAX, WORKERS_MAX
from coordinatord.protocol.messages import FRAME_BYTES_MAX
from coordinatord.runtime.websocket.handshake import HEAD_BYTES_MAX
from coordinatord.runtime.websocket.web_socket import UNSENT_BYTES_MAX
from coordinatord.security.browser_sessions import LINKS_MAX
from coordinatord.security.gatekeeper import FAILURES_MAX
from coordinatord.security.token_store import TOKENS_MAX
from coordinatord.server.app import UNACKNOWLEDGED_MS
from coordinatord.server.http.admin_api import REQUESTS_AT_ONCE_MAX
from coordinatord.server.http.events_api import FOLLOWERS_MAX
from coordinatord.server.http.live_updates import VIEWERS_MAX
from coordinatord.server.http.logs_api import READERS_MAX
from coordinatord.server.http.request_body import BODY_WITHIN_S
from coordinatord.server.http.stacks_api import READERS_MAX as STACKS_READERS_MAX
from coordinatord.server.sessions.connection_limits import REQUEST_WITHIN_S as FIRST_REQUEST_WITHIN_S
from coordinatord.server.sessions.connection_limits import ConnectionLimits
from coordinatord.server.sessions.connections import HEADERS_MAX, IDLE_S, LINE_BYTES_MAX, REQUEST_BYTES_MAX
from coordinatord.server.sessions.node_sessions import (
    CLOSE_WITHIN_S,
    FRAMES_AT_ONCE,
    FRAMES_PER_S,
    JOIN_WITHIN_S,
    JOINS_AT_ONCE,
    JOINS_PER_S,
)
from coordinatord.server.sessions.refusal_log import LINES_MAX
from coordinatord.store.retention import CLUSTER_RECORDS_RETAINED, REPEATED_RETAINED, RUNS_RETAINED, VISITORS_RETAINED
from nodeclient.keeping.parts.part_server import CONNECTIONS_MAX, REQUEST_WITHIN_S
from tests.support.source import ROOT

ALL = ConnectionLimits.of(1 << 20)
"""The limits of connections where descriptors are plenty."""

SERVER = "tests/coordinatord/server"
CONNECTIONS = f"{SERVER}/sessions/test_connection_limits.py"
HTTP_CONNECTIONS = f"{SERVER}/sessions/test_connections.py"
SESSIONS = f"{SERVER}/sessions/test_node_sessions.py"
SECURITY = "tests/coordinatord/security"
CODEC = "tests/coordinatord/protocol/test_codec.py"
PRINTABLE = "tests/coordinatord/protocol/test_printable.py"
RETENTION = "tests/coordinatord/store/test_retention.py"

LIMITS: list[tuple[tuple[float, ...], str, str]] = [
    ((Policy().nodes_max,), SESSIONS, "test_more_nodes_than_the_limit_are_asked_to_come_later"),
    ((), CONNECTIONS, "test_a_node_beyond_the_descriptors_is_refused_for_now"),
    (
        (Policy().jobs_max,),
        "tests/coordinatord/core/test_machine.py",
        "test_the_oldest_ended_job_is_forgotten_for_a_new_one_and_live_ones_never",
    ),
    ((WORKERS_MAX,), CODEC, "test_a_wrong_value_is_refused_by_the_name_of_its_field"),
    ((NAME_MAX,), CODEC, "test_a_wrong_value_is_refused_by_the_name_of_its_field"),
    ((DURATION_S_MAX,), CODEC, "test_a_wrong_value_is_refused_by_the_name_of_its_field"),
    ((VIEWERS_MAX,), f"{SERVER}/page/test_stream.py", "test_one_viewer_too_many_is_refused_until_another_one_goes"),
    ((FOLLOWERS_MAX,), f"{SERVER}/http/test_events_api.py", "test_followers_are_limited"),
    ((READERS_MAX,), f"{SERVER}/http/test_logs_api.py", "test_no_more_read_at_once_than_people_do"),
    ((STACKS_READERS_MAX,), f"{SERVER}/http/test_stacks_api.py", "test_what_cannot_be_asked_is_refused"),
    (
        (WORKERS_AT_ONCE_MAX,),
        "tests/coordinatord/core/shown/test_log_sources.py",
        "test_no_more_are_read_at_once_than_a_person_reads",
    ),
    ((LAST_LINES_MAX, LINE_MAX), CODEC, "test_a_wrong_value_is_refused_by_the_name_of_its_field"),
    ((RUNS_RETAINED, ROUNDS_RETAINED), RETENTION, "test_the_last_rounds_are_kept_whole"),
    ((VISITORS_RETAINED,), RETENTION, "test_nodes_that_come_and_go_while_a_round_is_on_do_not_pile_up"),
    ((REPEATED_RETAINED, CLUSTER_RECORDS_RETAINED), RETENTION, "test_stalls_of_a_round_that_lasts_do_not_pile_up"),
    ((DRAINED_MAX,), "tests/coordinatord/core/test_admin_requests.py", "test_one_name_too_many_is_not_drained"),
    ((TOKENS_MAX,), f"{SECURITY}/test_tokens.py", "test_revoked_tokens_make_room"),
    ((LINKS_MAX,), f"{SECURITY}/test_browser_sessions.py", "test_the_oldest_make_room"),
    ((FRAME_BYTES_MAX,), SESSIONS, "test_what_ends_a_session_is_said_by_a_code"),
    ((1_024,), CODEC, "test_what_is_nested_too_deeply_for_python_is_refused_as_any_other_value"),
    ((), PRINTABLE, "test_the_pattern_refuses_all_that_steers_a_terminal_and_nothing_that_python_prints"),
    (
        (FRAMES_AT_ONCE, FRAMES_PER_S),
        CONNECTIONS,
        "test_a_node_that_sends_without_end_is_refused_and_others_are_answered",
    ),
    (
        (JOINS_AT_ONCE, JOINS_PER_S),
        SESSIONS,
        "test_a_node_that_comes_without_end_is_refused_for_now_and_others_are_not",
    ),
    ((UNSENT_BYTES_MAX,), SESSIONS, "test_a_slow_reader_costs_one_message_and_hears_the_latest_word"),
    ((HEAD_BYTES_MAX,), HTTP_CONNECTIONS, "test_a_request_that_is_no_good_is_refused_over_http"),
    ((LINE_BYTES_MAX,), HTTP_CONNECTIONS, "test_headers_over_a_limit_are_refused"),
    ((HEADERS_MAX,), HTTP_CONNECTIONS, "test_headers_over_a_limit_are_refused"),
    ((MAX_MSG_QUEUE_SIZE,), HTTP_CONNECTIONS, "test_what_follows_a_request_for_a_stream_is_not_read_without_end"),
    ((REQUEST_BYTES_MAX,), f"{SERVER}/http/test_admin_api.py", "test_a_body_that_is_too_large_is_refused_in_words"),
    ((FIRST_REQUEST_WITHIN_S,), CONNECTIONS, "test_tls_that_is_not_agreed_on_in_time_is_given_up"),
    ((JOIN_WITHIN_S,), SESSIONS, "test_who_does_not_say_who_it_is_is_sent_away"),
    ((BODY_WITHIN_S,), HTTP_CONNECTIONS, "test_a_request_whose_end_does_not_come_is_given_up_in_words"),
    ((IDLE_S,), CONNECTIONS, "test_a_connection_over_http_that_rests_for_too_long_is_closed"),
    ((UNACKNOWLEDGED_MS / 1_000,), f"{SERVER}/page/test_stream.py", "test_who_does_not_read_at_all_is_let_go"),
    ((CLOSE_WITHIN_S,), SESSIONS, "test_a_peer_that_does_not_answer_a_close_is_cut_off"),
    (
        (ALL.pending, ALL.pending * 3 / 4),
        CONNECTIONS,
        "test_of_too_many_half_agreements_on_tls_the_oldest_goes_and_a_node_comes_in",
    ),
    ((ALL.joining, ALL.joining * 3 / 4), CONNECTIONS, "test_a_session_without_a_join_makes_room_for_a_newer_one"),
    (
        (ALL.closing, ALL.closing * 3 / 4),
        CONNECTIONS,
        "test_who_was_refused_and_does_not_close_takes_the_place_of_nobody",
    ),
    (
        (ALL.requests, ALL.requests_per_address),
        CONNECTIONS,
        "test_an_address_has_so_many_connections_over_http_and_sessions_are_none_of_them",
    ),
    (
        (LINES_MAX,),
        f"{SERVER}/sessions/test_refusal_log.py",
        "test_refusals_of_one_bearer_are_so_many_lines_and_others_notice_nothing",
    ),
    ((LINES_MAX,), f"{SERVER}/http/test_browser_guard.py", "test_pages_that_ask_without_end_do_not_fill_the_log"),
    ((FAILURES_MAX,), f"{SECURITY}/test_tokens.py", "test_failures_of_an_address_are_bounded_and_valid_tokens_are_not"),
    (
        (CONNECTIONS_MAX,),
        "tests/nodeclient/keeping/parts/test_strange_readers.py",
        "test_a_flood_of_connections_without_the_key_keeps_nobody_out",
    ),
    (
        (REQUEST_WITHIN_S,),
        "tests/nodeclient/keeping/parts/test_strange_readers.py",
        "test_who_does_not_show_the_key_in_time_is_let_go",
    ),
]
"""The numbers of each row of the two tables, in their order, and who meets them."""

BESIDE = [
    ("tests/cli/test_settings_cli.py", "test_nodeclient_refuses_a_wrong_command_line_in_one_line"),
    (f"{SERVER}/http/test_admin_api.py", "test_requests_in_progress_are_limited"),
    ("tests/nodeclient/diagnosis/test_diagnose.py", "test_of_a_deep_stack_both_ends_are_shown"),
    (RETENTION, "test_drains_that_hold_are_kept_and_others_do_not_pile_up"),
    (RETENTION, "test_the_last_runs_of_a_job_are_kept"),
    (CONNECTIONS, "test_ten_thousand_nodes_of_one_address_come_in_at_once_and_leave_room_for_others"),
]
"""Who meets what else these rows say: the flags that are refused, the second number, what all addresses have."""


def rows() -> list[tuple[str, str]]:
    """Return the limits of the reference, each with its number."""
    text = (ROOT / "docs/reference.md").read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \| .+? \| .+? \|$", text, re.MULTILINE)
    return [(limit, number) for limit, number in found if limit != "limit"]


def test_the_reference_has_the_numbers_of_the_code() -> None:
    shown = [tuple(float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\b", row)) for _, row in rows()]
    assert shown == [numbers for numbers, _, _ in LIMITS]
    assert FOLLOWERS_MAX == REQUESTS_AT_ONCE_MAX


@pytest.mark.parametrize(("file", "test"), [*((file, test) for _, file, test in LIMITS), *BESIDE])
def test_somebody_meets_each_limit(file: str, test: str) -> None:
    assert f"def {test}(" in (ROOT / Path(file)).read_text()
