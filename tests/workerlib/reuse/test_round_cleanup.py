"""Which errors end a round for a worker and which are its own, and what a round leaves behind in its process."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch.distributed
from torch.distributed import distributed_c10d

from tests.support.torch_names import skip_without
from workerlib.keeping.kept_errors import LeftRoundError
from workerlib.reuse import round_cleanup

pytestmark = pytest.mark.slow

LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"

ASSERTED = "Last error: Cuda failure 'device-side assert triggered'"


class Big:
    """What a function of a script holds."""


def lost() -> RuntimeError:
    return RuntimeError(LOST)


def of_device() -> BaseException:
    """Return the error of a GPU that has failed."""
    return getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: an illegal memory access was encountered")


def no_group() -> ValueError:
    """Return the error of a collective without a process group."""
    with pytest.raises(ValueError, match="initialized") as met:
        torch.distributed.barrier()
    return met.value


def raised_from(error: Exception, cause: BaseException | None) -> Exception:
    """Return the error as it is after `raise ... from`."""
    with suppress(BaseException):
        raise error from cause
    return error


SHARED = lost()
"""An error behind several others."""


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
        ExceptionGroup("tasks that awaited one", [SHARED, SHARED]),
        ExceptionGroup("tasks that awaited one", [raised_from(ValueError(number), SHARED) for number in range(2)]),
        raised_from(ValueError("all tasks failed"), ExceptionGroup("tasks", [lost()])),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_an_error_ends_the_round_whatever_a_script_has_made_of_it(error: BaseException) -> None:
    end = round_cleanup.round_ending_error(error)
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
        torch.distributed.DistBackendError(
            f"NCCL error in: ProcessGroupNCCL.cpp:2124, unhandled cuda error. {ASSERTED}"
        ),
        RuntimeError("Process group watchdog: ProcessGroupNCCL CUDA error: device-side assert triggered"),
        of_device(),
        raised_while_handling(of_device(), lost()),
        raised_while_handling(of_device(), LeftRoundError()),
        raised_while_handling(lost(), of_device()),
        hidden(lost(), of_device()),
        ExceptionGroup("tasks", [lost(), raised_from(ValueError("the other task"), of_device())]),
        no_group(),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_an_error_of_the_script_is_its_own(error: BaseException) -> None:
    assert round_cleanup.round_ending_error(error) is None


def test_a_group_that_is_gone_ends_the_round_for_a_worker_that_was_told_to_leave() -> None:
    assert round_cleanup.round_ending_error(no_group(), asked=True)
    assert round_cleanup.round_ending_error(ValueError("a mistake"), asked=True) is None


def test_errors_in_a_circle_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert round_cleanup.round_ending_error(first) is None
    round_cleanup.clear_tracebacks(first)


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
    round_cleanup.clear_tracebacks(group)
    assert held[0]() is None


@pytest.fixture
def _tests_set_aside() -> Iterator[None]:
    """Leave the million objects of the tests out of garbage collections, as they were before."""
    yield
    gc.freeze()


@pytest.mark.usefixtures("_tests_set_aside")
def test_what_is_set_aside_is_no_garbage_until_it_is_taken_back() -> None:
    class Ring:
        """Refers to itself, so that only a collection ends it."""

        def __init__(self) -> None:
            self.itself = self

    dropped, kept = Ring(), Ring()
    of_dropped, of_kept = weakref.ref(dropped), weakref.ref(kept)
    del dropped
    gc.unfreeze()
    try:
        round_cleanup.freeze_objects()
        assert of_dropped() is None
        assert not any(item is kept for item in gc.get_objects())
        del kept
        gc.collect()
        assert of_kept() is not None
    finally:
        round_cleanup.unfreeze_objects()
    gc.collect()
    assert of_kept() is None


def test_what_a_warm_workers_parent_has_set_aside_is_not_taken_back() -> None:
    gc.freeze()
    round_cleanup.freeze_objects()
    round_cleanup.unfreeze_objects()
    assert gc.get_freeze_count()


def test_nothing_is_aborted_of_a_group_that_is_just_being_made() -> None:
    skip_without("torch.distributed.distributed_c10d:_abort_process_group")
    round_cleanup.abort_collectives()


def test_a_torch_without_an_abort_does_for_groups_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed_c10d, "_abort_process_group", raising=False)  # torch 2.4 has none
    assert not round_cleanup.abort_obstacle()
    groups: Any = distributed_c10d._world.pg_map
    monkeypatch.setitem(groups, object(), ("nccl", None))
    assert "cannot abort collectives" in round_cleanup.abort_obstacle()
