"""A signal by which a node leaves, and the echo of it."""

import signal

from nodeclient.core.leaving import ECHO_S, LeaveSignals


def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    signals = LeaveSignals()
    assert signals.counts(signal.SIGINT, 100.0)
    assert not signals.counts(signal.SIGINT, 100.0)
    assert not signals.counts(signal.SIGINT, 100.0 + ECHO_S / 2)
    assert signals.counts(signal.SIGINT, 100.0 + ECHO_S), "the user insists"
    assert not signals.counts(signal.SIGINT, 100.1 + ECHO_S)
    assert signals.counts(signal.SIGTERM, 100.2 + ECHO_S)
