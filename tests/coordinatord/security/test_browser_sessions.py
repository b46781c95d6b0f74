"""Links and sessions of browsers: each link works once, and both end in time."""

from __future__ import annotations

import pytest

from coordinatord.protocol.access_token import Role
from coordinatord.security import browser_sessions
from coordinatord.security.browser_sessions import LINK_S, LINKS_MAX, SESSION_S, SESSIONS_MAX, BrowserSessions
from coordinatord.security.token_store import KnownToken

TOKEN = KnownToken("ops", Role.ADMIN, "*", "0" * 64, 0.0)


class Clock:
    """Time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> BrowserSessions:
    return BrowserSessions(clock)


def opened(sessions: BrowserSessions) -> str:
    found = sessions.open(sessions.new_link(TOKEN))
    assert found is not None
    assert found[1] is TOKEN
    return found[0]


def test_a_link_opens_one_session(sessions: BrowserSessions) -> None:
    link = sessions.new_link(TOKEN)
    first = sessions.open(link)
    assert first is not None
    assert sessions.open(link) is None
    assert sessions.token_of(first[0]) is TOKEN
    assert sessions.token_of(link) is None, "the address of a page is no secret for long"
    assert sessions.token_of("") is None
    assert sessions.open("\udcff") is None


def test_both_end_in_time(sessions: BrowserSessions, clock: Clock) -> None:
    late = sessions.new_link(TOKEN)
    session = opened(sessions)
    clock.now = LINK_S + 1.0
    assert sessions.open(late) is None
    assert sessions.token_of(session) is TOKEN
    clock.now = SESSION_S + 1.0
    assert sessions.token_of(session) is None


def test_the_oldest_make_room(sessions: BrowserSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (LINKS_MAX, SESSIONS_MAX) == (100, 1_000)
    monkeypatch.setattr(browser_sessions, "LINKS_MAX", 2)
    monkeypatch.setattr(browser_sessions, "SESSIONS_MAX", 2)
    kept = [opened(sessions) for _ in range(3)]
    assert [sessions.token_of(session) is TOKEN for session in kept] == [False, True, True]
    links = [sessions.new_link(TOKEN) for _ in range(3)]
    assert [sessions.open(link) is not None for link in links] == [False, True, True]


def test_no_secret_is_kept(sessions: BrowserSessions) -> None:
    secrets = [sessions.new_link(TOKEN), opened(sessions)]
    assert not any(secret in repr(vars(sessions)) for secret in secrets)
