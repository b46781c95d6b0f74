"""The cause of a program's end is found in its stderr, whatever else stands there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeclient.diagnosis import tracebacks
from nodeclient.diagnosis.stderr_text import LINE_LENGTH_MAX, LINES_MAX, last_lines

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'

CHAIN = f"""{TRACE}ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

{TRACE}RuntimeError: no mean
"""

CONTEXT = f"""{TRACE}KeyError: 'a'

During handling of the above exception, another exception occurred:

{TRACE}KeyError: 'b'
"""

REMOTE = f'''multiprocessing.pool.RemoteTraceback:
"""
{TRACE}ValueError: in the pool
"""

The above exception was the direct cause of the following exception:

{TRACE}ValueError: in the pool, raised again
'''

LOADER = f"""{TRACE}ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 54, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
            ~~~~~~~~~~~~^^^^^
ValueError: bad sample

"""

GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 1, in <module>
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 3, in load
    | ValueError: a
    +---------------- 2 ----------------
    | KeyError: 'c'
    +------------------------------------
"""

INNER_GROUPS = """  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 4, in <module>
  | ExceptionGroup: outer (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ExceptionGroup: first (1 sub-exception)
    +-+---------------- 1 ----------------
      | OSError: disk
      +------------------------------------
    +---------------- 2 ----------------
    | ExceptionGroup: last (1 sub-exception)
    +-+---------------- 1 ----------------
      | ValueError: b
      +------------------------------------
"""
"""Python closes only the innermost group if it is the last one."""

NESTED_GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 1, in <module>
  | ExceptionGroup: outer (1 sub-exception)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "train.py", line 3, in load
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | OSError: disk
      +------------------------------------
"""

BOX = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /data/train.py:7 in <module>                                                 │
│                                                                              │
│ ❱ 7 main()                                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: shown in a box
"""

NCCL = f"""[rank1]:{TRACE}""".replace("\n", "\n[rank1]: ").replace("[rank1]:T", "[rank1]: T") + (
    """DistBackendError: NCCL error, system error
[rank1]: ncclSystemError: Call failed.
[rank1]: Last error:
[rank1]: Connect failed
[rank1]:[W1121 12:25:20.668 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed
"""
)

AGAIN = "".join(f"[rank1]: [rank0]: {line}\n" for line in f"{TRACE}ValueError: bad".splitlines())
"""What a process writes that has made two process groups: torch adds its prefix once more with each."""

CUDA = f"""{TRACE}RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x15 in libc10.so)
frame #1: c10::detail::torchCheckFail(char const*) + 0x64 (0x15 in libc10.so)

"""

FRAMES = "".join(f"frame #{number}: <unknown function> + 0xdc253 (0x7fc9 in libstdc++.so.6)\n" for number in range(60))

IGNORED = f"""Exception ignored in: <function DataLoader.__del__ at 0x7f>
{TRACE}AttributeError: 'NoneType' object has no attribute 'shutdown'
"""

THREAD = f"Exception in thread Thread-1 (load):\n{TRACE}OSError: in a thread\n"

SHARER = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 138, in _serve
[rank1]:     with self._listener.accept() as conn:
[rank1]:   File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv
[rank1]:     chunk = read(handle, remaining)
[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer
"""
"""What a process of a DataLoader writes when its worker was killed."""

ABORT = "terminate called without an active exception\n"

PYTHON = [
    (f"{TRACE}ValueError: bad\n", "ValueError: bad"),
    (f"{TRACE}MemoryError\n", "MemoryError"),
    (f"{TRACE}KeyboardInterrupt\n", "KeyboardInterrupt"),
    (f"{TRACE}train.main.<locals>.Stop: here\n", "train.main.<locals>.Stop: here"),
    (f"{TRACE}AssertionError: \n", "AssertionError:"),
    (f"{TRACE}ValueError: two\nlines\n", "ValueError: two lines"),
    (f"{TRACE}ValueError: with a\nnote\n", "ValueError: with a note"),
    (f"{TRACE}ConfigError: wrong:\n\n  epochs: -1\n\nlater words\n", "ConfigError: wrong: epochs: -1"),
    (f"{TRACE}Füller.Fehler: größer\n", "Füller.Fehler: größer"),
    (CHAIN, "RuntimeError: no mean"),
    (CONTEXT, "KeyError: 'b'"),
    (REMOTE, "ValueError: in the pool, raised again"),
    (LOADER, "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: bad sample"),
    (f"{INNER_GROUPS}{TRACE}KeyError: 'step'\n", "KeyError: 'step'"),
    (f"{TRACE}KeyError: 'step'\n{INNER_GROUPS}", "ExceptionGroup: outer (2 sub-exceptions), first: OSError: disk"),
    (GROUP, "ExceptionGroup: several (2 sub-exceptions), first: ValueError: a"),
    (NESTED_GROUP, "ExceptionGroup: outer (1 sub-exception), first: OSError: disk"),
    (BOX, "ValueError: shown in a box"),
    (AGAIN, "ValueError: bad"),
    (f"50%|{AGAIN}", "ValueError: bad"),
    (
        '  File "train.py", line 2\n    y = 2\nIndentationError: unexpected indent\n',
        "IndentationError: unexpected indent",
    ),
    (
        f'{TRACE}  File "lib.py", line 1\n    a b c\n      ^\nSyntaxError: invalid syntax\n',
        "SyntaxError: invalid syntax",
    ),
    (NCCL, "DistBackendError: NCCL error, system error ncclSystemError: Call failed. Last error: Connect failed"),
    (CUDA, "RuntimeError: CUDA error: device-side assert triggered"),
    (f"{TRACE}ValueError: bad\n{FRAMES}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\n{IGNORED}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\n{THREAD}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\n{SHARER}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\n{CONTEXT.rpartition(TRACE)[0]}{SHARER}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\nException in thread Thread-1 (load):\n{CONTEXT}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\nException in thread Thread-1 (load):\n{REMOTE}", "ValueError: bad"),
    (f"{TRACE}ValueError: bad\nException ignored in: <generator object load at 0x7f>\n{CHAIN}", "ValueError: bad"),
    (f"{TRACE}ValueError: old\nretrying\n{TRACE}ValueError: new\n", "ValueError: new"),
    (f"--- Logging error ---\n{TRACE}TypeError: not all arguments converted\nsorry\n", None),
    (THREAD, "OSError: in a thread"),
    (f"Process Process-1:\n{TRACE}OSError: in a child\n", "OSError: in a child"),
    (f"\x1b[31m{TRACE}\x1b[1mValueError\x1b[0m: \x1b[35mcoloured\x1b[0m\n", "ValueError: coloured"),
    (f"\rEpoch 1: 299/300, loss 0.1{TRACE}ValueError: bad\n", "ValueError: bad"),
    (f"\rstep 12, loss 0.25 {TRACE}ValueError: bad\n", "ValueError: bad"),
    (f"{TRACE}TasksFailedError: two\n1) Traceback (most recent call last):\nKeyError: 3\n", "TasksFailedError: two"),
    (f"\r 10%|#   |\r 20%|##  | 2/10 [00:01<00:04, 1.9it/s]{TRACE}ValueError: bad\n", "ValueError: bad"),
    (f"\0{TRACE}RuntimeError: after a zero byte\n", "RuntimeError: after a zero byte"),
    (f"{TRACE}loader 3: still here\nValueError: interleaved\n", "ValueError: interleaved"),
    (f"{TRACE}ValueError: bad\n" + "step done\n" * 30, None),
    (
        '    loss = model(x)\n  File "model.py", line 9, in forward\n    return 1 / 0\nZeroDivisionError: x\n',
        "ZeroDivisionError: x",
    ),
    (TRACE, None),
    ("/usr/bin/python: No module named pkg.nope\n", "No module named pkg.nope"),
    ("python3.11: No module named pkg.nope\n", "No module named pkg.nope"),
    ("/usr/bin/python: No module named pkg.nope\nstep 1\n", None),
    ("python: can't open file '/a b': [Errno 2] No such file", "can't open file '/a b': [Errno 2] No such file"),
    (f"{TRACE}RuntimeError: DataLoader worker is killed\n{ABORT}", "RuntimeError: DataLoader worker is killed"),
    (f"{ABORT}{TRACE}RuntimeError: DataLoader worker is killed\n", "RuntimeError: DataLoader worker is killed"),
    ("step 1\nstep 2\n", None),
    ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: -x\n", None),
    ("", None),
]


TERMINATE = """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank 0] Watchdog caught collective operation timeout
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:567 (most recent call first):
frame #0: c10::Error::Error() + 0x99 (0x7f in libc10.so)
"""

FATAL = """Fatal Python error: Segmentation fault

Current thread 0x7f (most recent call first):
  File "a.py", line 4 in f
"""

KILLED = [
    (TERMINATE, "c10::DistBackendError: [Rank 0] Watchdog caught collective operation timeout"),
    (f"{TERMINATE}\n{FATAL}", "c10::DistBackendError: [Rank 0] Watchdog caught collective operation timeout"),
    ("terminate called after throwing an instance of 'int'\n", "int"),
    (FATAL, "Fatal Python error: Segmentation fault"),
    (f"{TRACE}ValueError: survived\n{FATAL}", "Fatal Python error: Segmentation fault"),
    (f"{TRACE}ValueError: the last word\n", "ValueError: the last word"),
    (f"{TRACE}ValueError: the cause\n{ABORT}", "ValueError: the cause"),
    (f"{TRACE}ValueError: the cause\n{ABORT}\n{FATAL}", "ValueError: the cause"),
    (f"no images\n{ABORT}", None),
    (f"no images\n{ABORT}\n{FATAL}", None),
    (f"{TRACE}ValueError: survived\nstep 1\nstep 2\nstep 3\n", None),
    (CONTEXT.partition("KeyError: 'b'")[0], "KeyError: 'a'"),
    (SHARER, None),
]


@pytest.mark.parametrize(
    ("stderr", "error", "killed"),
    [*((*row, False) for row in PYTHON), *((*row, True) for row in KILLED)],
    ids=lambda value: repr(value)[-40:],
)
def test_the_error_is_found_by_which_a_program_ended_or_was_ended_by_a_signal(
    stderr: str, error: str | None, killed: bool
) -> None:
    trace = tracebacks.find(last_lines(stderr), killed=killed)
    assert (trace.error if trace else None) == error


def test_a_chain_is_shown_whole() -> None:
    lines = last_lines(f"step 1\n{CHAIN}")
    trace = tracebacks.find(lines, killed=False)
    assert trace is not None
    assert lines[trace.first : trace.end] == lines[1:]


def test_a_chain_that_is_cut_off_is_no_part_of_the_next_error() -> None:
    cut_off = CONTEXT.partition("KeyError: 'b'")[0]
    lines = last_lines(f"{cut_off}Exception in thread Thread-1:\n{TRACE}ValueError: later\n")
    later = tracebacks.find(lines, killed=False)
    assert later is not None
    assert later.error == "KeyError: 'a'"
    lines = last_lines(f"{cut_off}{TRACE}ValueError: later\n")
    later = tracebacks.find(lines, killed=False)
    assert later is not None
    assert lines[later.first : later.end] == last_lines(f"{TRACE}ValueError: later\n")


def test_what_is_too_much_is_not_looked_through() -> None:
    lines = last_lines("x" * 10_000_000 + "\n" + "\n" * 100_000 + "y\n")
    assert len(lines) == LINES_MAX - 1
    assert lines[-1] == "y"
    assert len(last_lines("x" * 10_000_000)[0]) == LINE_LENGTH_MAX


FRAGMENTS = sorted({line for stderr, _ in PYTHON + KILLED for line in stderr.split("\n")})


@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=40).map(lambda some: some * 2), st.booleans()
)
def test_any_mixture_of_lines_is_survived(fragments: list[str], killed: bool) -> None:
    lines = last_lines("\n".join(fragments))
    trace = tracebacks.find(lines, killed=killed)
    if trace is not None:
        assert 0 <= trace.first <= trace.exception <= trace.end <= len(lines)
        assert trace.error
        assert "\n" not in trace.error
        assert all(earlier.stop <= trace.first for earlier in tracebacks.repeated(lines, trace))
