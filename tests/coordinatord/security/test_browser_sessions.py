"""Links and sessions of browsers: each link works once, and both end in time."""

import pytest
from msgspec.structs import replace

from coordinatord.protocol.access_token import Role
from coordinatord.security import browser_sessions
from coordinatord.security.browser_sessions import LINK_S, LINKS_MAX, SESSION_S, BrowserSessions
from coordinatord.security.token_store import KnownToken

KEY = b"k" * 32

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
    return BrowserSessions(KEY, clock)


def opened(sessions: BrowserSessions) -> str:
    found = sessions.open(sessions.new_link(TOKEN))
    assert found is not None
    assert found[1] is TOKEN
    return found[0]


def test_a_link_opens_one_session(sessions: BrowserSessions) -> None:
    link = sessions.new_link(TOKEN)
    assert (first := sessions.open(link)) is not None
    assert sessions.open(link) is None
    assert sessions.token_of(first[0], [TOKEN]) is TOKEN
    assert sessions.token_of(link, [TOKEN]) is None, "the address of a page is no secret for long"
    assert sessions.token_of("", [TOKEN]) is None
    assert sessions.token_of("\udcff.\udcff", [TOKEN]) is None
    assert sessions.open("\udcff") is None


def test_both_end_in_time(sessions: BrowserSessions, clock: Clock) -> None:
    late = sessions.new_link(TOKEN)
    session = opened(sessions)
    clock.now = LINK_S + 1.0
    assert sessions.open(late) is None
    assert sessions.token_of(session, [TOKEN]) is TOKEN
    clock.now = SESSION_S + 1.0
    assert sessions.token_of(session, [TOKEN]) is None


def test_a_session_ends_with_its_token(sessions: BrowserSessions) -> None:
    session, other = opened(sessions), replace(TOKEN, digest="1" * 64)
    assert sessions.token_of(session, [other, TOKEN]) is TOKEN
    assert sessions.token_of(session, [other, replace(TOKEN, revoked_at=1.0)]) is None
    assert sessions.token_of(session, []) is None


def test_what_a_session_says_cannot_be_changed(sessions: BrowserSessions) -> None:
    digest, until, signature = opened(sessions).split(".")
    other = replace(TOKEN, digest="1" * 64)
    for forged in (
        f"{other.digest}.{until}.{signature}",
        f"{digest}.{int(until) + 1}.{signature}",
        f"{digest}.{until}.",
        f"{digest}.{until}",
        signature,
    ):
        assert sessions.token_of(forged, [TOKEN, other]) is None


def test_the_oldest_make_room(sessions: BrowserSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LINKS_MAX == 100
    monkeypatch.setattr(browser_sessions, "LINKS_MAX", 2)
    links = [sessions.new_link(TOKEN) for _ in range(3)]
    assert [sessions.open(link) is not None for link in links] == [False, True, True]


def test_no_secret_is_kept(sessions: BrowserSessions) -> None:
    assert sessions.new_link(TOKEN) not in repr(vars(sessions))
