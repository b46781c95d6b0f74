"""When a worker whose program is over is taken to be stuck."""

from nodeclient.core.leftover_stages import LINGER_S, Lingering


def test_a_worker_is_overdue_once_and_only_when_its_time_is_over() -> None:
    workers = Lingering()
    assert workers.overdue({}, 0.0) == []
    assert workers.overdue({1: 0}, 10.0) == []
    assert workers.overdue({1: 0, 0: 1}, 20.0) == []
    assert workers.overdue({1: 0, 0: 1}, 10.0 + LINGER_S - 0.1) == []
    assert workers.overdue({1: 0, 0: 1}, 10.0 + LINGER_S) == [1]
    assert workers.overdue({1: 0, 0: 1}, 20.0 + LINGER_S) == [0]
    assert workers.overdue({1: 0, 0: 1}, 99.0 + LINGER_S) == []
