"""A request that was sent twice, and is done once more at any later time, changes nothing."""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeVar

import pytest

from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import VALUE_BYTES_MAX, History
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.refusals import EtcdAwayError, EtcdRefusedError
from coordinatord.store.etcd.requests import EtcdAnswer, parsed
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.interface import LeadershipLostError
from coordinatord.store.row_codec import Row
from tests.support.modelled_etcd import KEYS, ModelledEtcd, changes_history

Result = TypeVar("Result")


class RepeatingGateway(Gateway):
    """Answers at once, and remembers what it was asked."""

    def __init__(self) -> None:
        self._etcd = ModelledEtcd()
        self._asked: list[tuple[str, Mapping[str, Any]]] = []

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Carry out a request, after all earlier ones once more."""
        del try_within_s
        self.repeat()
        self._asked.append((path, body))
        return parsed(self._etcd.do(path, body))

    def set_back(self) -> Callable[[], None]:
        """Return what brings back the present state, with no request on its way."""
        copy = deepcopy(self._etcd)

        def back() -> None:
            self._etcd = copy
            self._asked.clear()

        return back

    def expire_leader(self) -> None:
        """End the lease of whoever leads."""
        self._etcd.expire_leader()

    def repeat(self) -> None:
        """Carry out all transactions again, the newest first: an older one may undo what a newer one has done."""
        for path, body in reversed(self._asked):
            if path == "/v3/kv/txn":
                with suppress(EtcdRefusedError):  # its lease is over
                    self._etcd.do(path, body)


class ForgetfulGateway(RepeatingGateway):
    """Loses the answer to a commit if it `forgets`."""

    forgets = False

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Carry out a request. Raises `EtcdAwayError` once after a commit."""
        answer = await super().call(path, body, try_within_s)
        if self.forgets and changes_history(body):
            self.forgets = False
            raise EtcdAwayError("no answer")
        return answer


class DoublingGateway(RepeatingGateway):
    """Carries out each request twice, as if the first answer had been lost."""

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Carry out a request; return the second answer."""
        await super().call(path, body, try_within_s)
        return await super().call(path, body, try_within_s)


def _done(work: Coroutine[Any, Any, Result]) -> Result:
    with pytest.raises(StopIteration) as stop:
        work.send(None)
    result: Result = stop.value.value
    return result


def _row(number: int) -> Row:
    return (number, 0.0, "job", "run", "JobStopAsked", None, None, "{}")


def _led(gateway: Gateway) -> History:
    """Lead, and write nothing so far."""
    candidate = Candidate(gateway, KEYS, Coordinatord("h1", "h1:1", secure=False, since=0.0), 5.0)
    _done(candidate.win_at_once())
    return History(gateway, KEYS, candidate.election.fence)


def _begun(gateway: Gateway) -> History:
    history = _led(gateway)
    _done(history.begin())
    return history


@pytest.fixture(autouse=True)
def _merge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.commit_log.WASTE_ROWS", 0)
    monkeypatch.setattr("coordinatord.store.etcd.commit_log.MERGED_VALUES_MAX", 5)


@pytest.mark.slow
@pytest.mark.parametrize("value_bytes_max", [VALUE_BYTES_MAX, 50])
def test_what_is_done_again_later_changes_nothing(value_bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.history.VALUE_BYTES_MAX", value_bytes_max)
    monkeypatch.setattr("coordinatord.store.etcd.history.ROWS_AT_ONCE", 1)
    gateway = RepeatingGateway()
    history = _begun(gateway)
    _done(history.read())
    _done(history.sweep())
    lives: dict[int, Row] = {}

    def judge() -> None:
        gateway.repeat()
        assert list(_done(History(gateway, KEYS).read()).rows) == list(lives.values())

    for number in range(1, 30):
        dropped = [next(iter(lives))] if len(lives) > 3 else []
        lives = {seq: row for seq, row in lives.items() if seq not in dropped} | {number: _row(number)}
        _done(history.commit([_row(number)], dropped))
        judge()
        merger = history.log.next_merger()
        if merger is not None:
            _done(history.merge(merger, [lives[seq] for seq in merger.rows]))
            judge()
        if number == 15:
            _done(history.sweep())
            _done(history.replace(list(lives.values()), "again"))
            judge()
    assert len(history.log._values) < 20


@pytest.mark.parametrize("value_bytes_max", [VALUE_BYTES_MAX, 50])
def test_a_commit_whose_answer_was_lost_may_be_repeated(value_bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.history.VALUE_BYTES_MAX", value_bytes_max)
    gateway = ForgetfulGateway()
    history = _begun(gateway)
    gateway.forgets = True
    with pytest.raises(EtcdAwayError):
        history.commit([_row(1)], []).send(None)
    _done(history.commit([_row(1)], []))
    _done(history.commit([_row(2)], []))
    assert list(_done(History(gateway, KEYS).read()).rows) == [_row(1), _row(2)]


@pytest.mark.parametrize("value_bytes_max", [VALUE_BYTES_MAX, 50])
def test_each_request_may_be_repeated_because_its_answer_was_lost(
    value_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.history.VALUE_BYTES_MAX", value_bytes_max)
    gateway = DoublingGateway()
    history = _begun(gateway)
    rows = [_row(number) for number in range(1, 4)]
    for row in rows:
        _done(history.commit([row], []))
    _done(history.replace(rows, "one commit instead of three"))
    _done(history.commit([_row(4)], []))
    found = _done(History(gateway, KEYS).read())
    assert (list(found.rows), found.about.generation) == ([*rows, _row(4)], 2)


def test_a_former_leader_changes_nothing_though_nobody_has_written_since() -> None:
    gateway = RepeatingGateway()
    former = _begun(gateway)
    for number in range(1, 30):
        _done(former.commit([_row(number)], [number - 3] if number > 3 else []))
    rows = [_row(number) for number in range(27, 30)]
    merger = former.log.next_merger()
    assert merger is not None
    gateway.expire_leader()
    _led(gateway)
    merged = [row for row in rows if row[0] in merger.rows]
    writes = former.commit([_row(30)], []), former.merge(merger, merged), former.sweep(), former.replace(rows, "again")
    for write in writes:
        with pytest.raises(LeadershipLostError, match="another coordinator leads"):
            write.send(None)
    gateway.repeat()
    assert list(_done(History(gateway, KEYS).read()).rows) == rows


def test_a_leader_finds_by_looking_and_by_writing_that_etcd_was_set_back() -> None:
    gateway = RepeatingGateway()
    history = _begun(gateway)
    _done(history.read())
    _done(history.commit([_row(1)], []))
    _done(history.check_commits())
    set_back = gateway.set_back()
    _done(history.commit([_row(2)], []))
    set_back()
    text = "etcd was set back, as to a snapshot: its newest commit is 1, and 2 was there before"
    with pytest.raises(LeadershipLostError, match=text):
        _done(history.check_commits())
    with pytest.raises(LeadershipLostError, match=text):
        _done(history.commit([_row(3)], []))
