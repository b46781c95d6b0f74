"""Which errors end a round for a worker and which are its own, and what a round leaves behind in its process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import torch.distributed

from workerlib.in_place import leftovers
from workerlib.keep.kept_errors import LeftRoundError

LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"


class Big:
    """What a function of a script holds."""


def lost() -> RuntimeError:
    return RuntimeError(LOST)


def raised_from(error: Exception, cause: BaseException | None) -> Exception:
    """Return the error as it is after `raise ... from`."""
    with suppress(BaseException):
        raise error from cause
    return error


def raised_while_handling(error: BaseException, other: BaseException) -> BaseException:
    """Return the error as it is when it was raised in a handler of another one."""

    @contextmanager
    def handling() -> Iterator[None]:
        try:
            yield
        except type(other):
            raise error  # noqa: B904 - as scripts do

    with suppress(BaseException), handling():
        raise other
    return error


def hidden(error: Exception, other: BaseException) -> Exception:
    """Return the error as it is after `raise ... from None` in a handler of another one."""
    raised_while_handling(error, other)
    return raised_from(error, None)


def raised_by_an_exit_stack(error: BaseException, other: BaseException) -> BaseException:
    """Return the error as it is when a callback of an exit stack raises it, while another one passes."""

    def fail() -> None:
        raise error

    with suppress(BaseException), ExitStack() as stack:
        stack.callback(fail)
        raise other
    return error


@pytest.mark.parametrize(
    "error",
    [
        LeftRoundError(),
        lost(),
        torch.distributed.DistBackendError("NCCL communicator was aborted on rank 0."),
        raised_from(ValueError("the step failed"), lost()),
        raised_from(KeyError("a"), raised_from(ValueError("the step failed"), LeftRoundError())),
        raised_while_handling(NameError("a mistake in a handler"), lost()),
        raised_by_an_exit_stack(OSError("the file is closed"), LeftRoundError()),
        ExceptionGroup("tasks", [lost(), raised_from(ValueError("the other task"), lost())]),
        BaseExceptionGroup("tasks", [LeftRoundError(), lost()]),
        raised_from(ValueError("all tasks failed"), ExceptionGroup("tasks", [lost()])),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_an_error_ends_the_round_whatever_a_script_has_made_of_it(error: BaseException) -> None:
    end = leftovers.end_of_round(error)
    assert isinstance(end, LeftRoundError | torch.distributed.DistError) or str(end) == LOST


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a mistake"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        KeyboardInterrupt(),
        raised_while_handling(KeyboardInterrupt(), lost()),
        raised_while_handling(SystemExit(3), lost()),
        raised_from(ValueError("it has nothing to do with that"), None),
        hidden(ValueError("the script hides it"), lost()),
        ExceptionGroup("tasks", [lost(), ValueError("a mistake")]),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_an_error_of_the_script_is_its_own(error: BaseException) -> None:
    assert leftovers.end_of_round(error) is None


def test_errors_in_a_circle_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert leftovers.end_of_round(first) is None
    leftovers.forget_frames(first)


def test_what_the_functions_held_that_an_error_has_left_is_dropped() -> None:
    def fail() -> None:
        big = Big()
        held.append(weakref.ref(big))
        raise lost()

    held: list[weakref.ref[Big]] = []
    try:
        fail()
    except RuntimeError as error:
        group = ExceptionGroup("tasks", [error])
    assert held[0]() is not None
    leftovers.forget_frames(group)
    assert held[0]() is None


def test_what_is_set_aside_is_no_garbage_and_is_not_looked_at_again() -> None:
    class Ring:
        """Refers to itself, so that only a collection ends it."""

        def __init__(self) -> None:
            self.itself = self

    dropped, kept = Ring(), Ring()
    of_dropped, of_kept = weakref.ref(dropped), weakref.ref(kept)
    del dropped
    try:
        leftovers.set_aside()
        assert of_dropped() is None
        assert not any(item is kept for item in gc.get_objects())
        del kept
        gc.collect()
        assert of_kept() is not None
    finally:
        gc.unfreeze()


def test_nothing_is_aborted_of_a_group_that_the_main_thread_has_just_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)  # as of a moment ago
    leftovers.abort_collectives()
