"""Finds the error that ended a worker in its stderr: a Python traceback, a C++ error, or a fatal error of Python.

A program may have logged other tracebacks before, and much may follow the relevant one: warnings, C++ stacks, output of
threads while Python shuts down. So all errors are found first, each with its origin. The last one of the main thread,
or else of another thread, is taken if the program did not go on for long after it. If a signal ended the program, an
error in native code comes first. Pure; the lines are those of `stderr_text.last_lines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import takewhile

from msgspec import Struct

from coordinatord.protocol.fields import SENTENCE_MAX
from nodeclient.diagnosis.stderr_text import is_log_line, is_native_frame

FOLLOWING_LINES_MAX = 20
"""How many lines of output may follow a fatal error. After more of them, the program has continued."""

FOLLOWING_LINES_MAX_KILLED = 2
"""The same for a program that a signal ended, which is rarely due to an exception: Python then exits with 1."""

FOLDED_LINES_MAX = 6
"""The limit of an exception's text in lines: errors of NCCL have four, and more may be the program's next output."""

_HEADER = re.compile(r"(?:.*(?:\S|[\d%|)\]] ))?(?:\[rank\d+\]: )*Traceback \(most recent call last\):")
"""The header of a traceback. A progress bar may stand before it, but not a word: `Original Traceback` is no header."""
_GROUP_HEADER = re.compile(r"  \+ Exception Group Traceback \(most recent call last\):")
_BOX_HEADER = re.compile(r" *[╭+][─-]+ Traceback \(most recent .*[─-][╮+]")
"""The header of the library rich, which typer uses too. In a log it is indented, and cut off if there is no room."""
_PANEL_HEADER = re.compile(r"[╭+][─-] Error [─-]+[╮+]")
"""The header of a wrong command line, by typer and rich-click."""
_INNER_HEADER = re.compile(r".*Traceback \(most recent call last\):")
"""A header within the text of an exception, such as one raised in a DataLoader's worker."""
_SYNTAX_HEADER = re.compile(r'  File "[^"]+", line \d+')
"""The header of a script that Python cannot compile."""
_FRAME = re.compile(r'  File "[^"]+", line \d+, in ')
_CHAINED = re.compile(
    r"The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
    r"|-- Process \d+ terminated with the following error:"
)
"""Lines between chained exceptions, of Python and of torch.multiprocessing.spawn."""
_REMOTE = re.compile(r'"""|[\w.]*RemoteTraceback: ?')
"""Lines around the traceback of a pool's process, with which a chain may begin."""
_EXCEPTION = re.compile(r"(?:[\w<>]+\.)*[^\W\d]\w*(?::(?: .*)?)?")
"""`module.Name: text`, or only the name."""
_SYNTAX_ERROR = re.compile(r"(?:Syntax|Indentation|Tab)Error: .*")
_IN_GROUP = re.compile(r" {2,}[|+].*")
"""A line of an exception group, which Python draws as a tree."""
_GROUP_LINE = re.compile(r".* \(\d+ sub-exceptions?\)")
"""The exception of a group itself, and not one of those in it."""
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^']+)'")
"""The header of an uncaught exception of C++. Its text, if any, is one or two lines below."""
_TERMINATE_TEXT = re.compile(r"  what\(\):\s*(.*)")
_FATAL = re.compile(r"(Fatal Python error: .*)|\[?F\d{3,4} \d\d:\d\d:\d\d.*?\] (.*)")
"""The line of Python's fault handler, or that with which torch's C++ log, glog or absl ends a program."""
_ABORT = re.compile(r"terminate called without an active exception")
"""The message of C++ when Python ends, for any reason, while native threads run, such as those of a process group."""
_NOT_FOUND = re.compile(
    r"(?:.*/[^/:]*|python[\d.]*): "
    r"((?:No module named|Error while finding module specification for|can't open file|can't find '__main__') .*)"
)
"""Python's message, after its own path, when it does not find the program."""

_HARMLESS = re.compile(
    r"Exception ignored (?:in|on)\b|Error in (?:atexit|sys\.)|--- Logging error ---|Task exception was never retrieved"
)
"""A line above the traceback of an error that does not end a program."""
_CONTINUING_THREAD = re.compile(r'  File "[^"]*multiprocessing/resource_sharer\.py", line \d+, in _serve')
"""The first frame of a thread that prints errors and continues. Each process of a DataLoader has one, which prints an
error when the worker of that process was killed."""
_ELSEWHERE = re.compile(r"Exception in thread\b|Process [\w-]+(?::\d+)*:$")
"""A line above the traceback of a thread or a child process, which may or may not have ended the program."""

_ADVICE_OF_CUDA = re.compile(
    r"CUDA kernel errors might be asynchronously|For debugging consider passing CUDA_LAUNCH_BLOCKING"
    r"|Compile with `TORCH_USE_CUDA_DSA`|Search for `cuda\w+' in https?:"
)
"""Advice that follows every error of CUDA."""


class ErrorOrigin(IntEnum):
    """Where an error was raised, in order of how likely it ended the program."""

    HARMLESS = 0
    """It does not end a program."""
    ELSEWHERE = 1
    """A thread or a child process: it may or may not have ended the program."""
    PYTHON = 2
    """The main thread."""
    NATIVE = 3
    """C++, or Python's fault handler."""


class LoggedError(Struct, frozen=True):
    """One error, and where it is among the lines: frames from `first` on, then its text from `exception` to `end`."""

    error: str
    """The error in one line."""
    first: int
    """The index of its first line."""
    exception: int
    """The index of the first line of its text."""
    end: int
    """The index after the lines of its text that were read; a long text goes on from there."""
    origin: ErrorOrigin = ErrorOrigin.PYTHON


def find(lines: Sequence[str], *, killed: bool) -> LoggedError | None:
    """Return the error that ended a program, if the lines show it. `killed`: a signal ended the program."""
    if killed:
        # After the message of C++, Python's fault handler may write a traceback, which shows nothing new.
        lines = lines[: max((at for at, line in enumerate(lines) if _ABORT.fullmatch(line)), default=len(lines))]
    errors = list(_logged_errors(lines))
    if killed:
        # C++ and Python's fault handler write only before the process dies of a signal.
        native = next((logged for logged in errors if logged.origin == ErrorOrigin.NATIVE), None)
        if native is not None:
            return native
    limit = FOLLOWING_LINES_MAX_KILLED if killed else FOLLOWING_LINES_MAX
    for origin in (ErrorOrigin.PYTHON, ErrorOrigin.ELSEWHERE):
        last = next((logged for logged in reversed(errors) if logged.origin == origin), None)
        if last is not None and _count_lines_after(lines, last, errors) <= limit:
            return last
    return None


def repeated(lines: Sequence[str], logged: LoggedError) -> Iterator[range]:
    """Yield the earlier places of the same error: a program may log an exception and then end because of it."""
    innermost = _innermost(lines, logged)
    for other in _logged_errors(lines[: logged.first]):
        if _innermost(lines, other) == innermost:
            # Other output may follow the earlier text at once, so the text ends where it differs from the later one.
            pairs = zip(lines[other.exception : logged.first], lines[logged.exception : logged.end], strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            yield range(other.first, other.exception + same)


def fold(lines: Sequence[str]) -> tuple[str, int]:
    """Join an exception's text, from `lines[0]` on, into one line; return also its number of lines."""
    parts: list[str] = []
    index = 0
    while index < len(lines) and len(parts) < FOLDED_LINES_MAX and sum(map(len, parts)) < SENTENCE_MAX:
        line = lines[index]
        if is_native_frame(line) or is_log_line(line) or _begins_another(line) or _ABORT.fullmatch(line):
            break
        if not line.strip():
            # A blank line ends most texts, but not one that announces more.
            if parts and not parts[-1].endswith(":"):
                break
        elif _INNER_HEADER.fullmatch(line):
            index = _skip_indented(lines, index + 1)
            continue
        elif not _ADVICE_OF_CUDA.match(line):
            parts.append(line.strip())
        index += 1
    return " ".join(parts), index


def _logged_errors(lines: Sequence[str]) -> Iterator[LoggedError]:
    """Yield the errors in the order of the lines; a chain of exceptions is one error."""
    index = 0
    chain: int | None = None
    while index < len(lines):
        logged = _error_at(lines, index)
        if logged is None:
            index += 1
            continue
        first = index if chain is None else chain
        origin = logged.origin if logged.origin == ErrorOrigin.NATIVE else _origin(lines, first, index)
        follower = _next_in_chain(lines, logged.end)
        if follower is None or _error_at(lines, follower) is None:  # none, or it is cut off
            yield LoggedError(logged.error, first, logged.exception, logged.end, origin)
            index, chain = logged.end, None
        else:
            index, chain = follower, first


def _error_at(lines: Sequence[str], index: int) -> LoggedError | None:
    """Return the error whose first line is at `index`; None if no error begins there."""
    for pattern, read in _READERS.items():
        if pattern.fullmatch(lines[index]):
            return read(lines, index)
    if index == 0 and any(map(_FRAME.match, lines[: _skip_indented(lines, 0)])):
        return _read_traceback(lines, 0)  # the beginning of the traceback was not kept
    return None


def _read_traceback(lines: Sequence[str], header: int) -> LoggedError | None:
    """Parse a traceback; other output may come between it and its exception."""
    has_frame = any(_FRAME.match(line) or _SYNTAX_HEADER.match(line) for line in lines[header + 1 : header + 2])
    if lines[header][:1] not in {"T", "["} and not has_frame:
        return None  # another text that quotes a header
    at = _skip_indented(lines, header + 1)
    while at < len(lines) and not _EXCEPTION.fullmatch(lines[at]):
        if _begins_another(lines[at]):
            return None
        at += 1
    return _with_text(lines, header, at) if at < len(lines) else None


def _end_of_box(lines: Sequence[str], header: int) -> int:
    """Return the index after the last line of a box that the library rich has drawn."""
    inside = range(header + 1, len(lines))
    return next((at for at in inside if lines[at].lstrip()[:1] not in set("│|╰+")), len(lines))


def _read_box(lines: Sequence[str], header: int) -> LoggedError | None:
    end = _end_of_box(lines, header)
    return _with_text(lines, header, end) if end < len(lines) and _EXCEPTION.fullmatch(lines[end].lstrip()) else None


def _read_panel(lines: Sequence[str], header: int) -> LoggedError | None:
    end = _end_of_box(lines, header)
    text = " ".join(filter(None, (line.strip("│| ╰+╯─-") for line in lines[header + 1 : end])))
    return LoggedError(text, header, header, end) if text else None


def _read_syntax_error(lines: Sequence[str], header: int) -> LoggedError | None:
    end = _skip_indented(lines, header)
    return _with_text(lines, header, end) if end < len(lines) and _SYNTAX_ERROR.fullmatch(lines[end]) else None


def _read_native(lines: Sequence[str], header: int) -> LoggedError | None:
    """Parse the message of the C++ runtime about an uncaught exception."""
    match = _TERMINATE.fullmatch(lines[header])
    name = match[1] if match else ""
    texts = [at for at in range(header + 1, min(header + 3, len(lines))) if _TERMINATE_TEXT.match(lines[at])]
    if not texts:
        return LoggedError(name, header, header, header + 1, ErrorOrigin.NATIVE)
    text, length = fold([_TERMINATE_TEXT.sub(r"\1", lines[texts[0]], count=1), *lines[texts[0] + 1 :]])
    return LoggedError(f"{name}: {text}", header, texts[0], texts[0] + max(1, length), ErrorOrigin.NATIVE)


def _read_fatal(lines: Sequence[str], header: int) -> LoggedError | None:
    match = _FATAL.fullmatch(lines[header])
    return None if match is None else LoggedError(match[1] or match[2], header, header, header + 1, ErrorOrigin.NATIVE)


def _read_not_found(lines: Sequence[str], header: int) -> LoggedError | None:
    """Parse why Python did not find the program: the last line that it writes."""
    match = _NOT_FOUND.fullmatch(lines[header])
    return None if match is None or any(lines[header + 1 :]) else LoggedError(match[1], header, header, header + 1)


def _innermost(lines: Sequence[str], logged: LoggedError) -> Sequence[str]:
    """Return an exception with the frame that raised it: the outer frames depend on where it was caught."""
    frames = (at for at in range(logged.exception - 1, logged.first, -1) if _FRAME.match(lines[at]))
    return lines[next(frames, logged.first) : logged.exception + 1]


def _with_text(lines: Sequence[str], first: int, exception: int) -> LoggedError:
    """Return the error whose first line is at `first`, and whose text begins at `exception`."""
    text, length = fold(lines[exception:])
    return LoggedError(text, first, exception, exception + max(1, length))


def _read_group(lines: Sequence[str], first: int) -> LoggedError | None:
    """Parse a group: its tree counts as frames, and the last line of the tree as its text."""
    end = first + 1
    while end < len(lines) and _IN_GROUP.fullmatch(lines[end]) and not _GROUP_HEADER.fullmatch(lines[end]):
        end += 1
    texts = [re.sub(r"^[ +]*\| ?", "", line) for line in lines[first + 1 : end]]
    named = [text for text in texts if _EXCEPTION.fullmatch(text)]
    if not named:
        return None
    inner = next((text for text in named if not _GROUP_LINE.fullmatch(text)), "")
    return LoggedError(f"{named[0]}, first: {inner}" if inner else named[0], first, end - 1, end)


def _origin(lines: Sequence[str], first: int, header: int) -> ErrorOrigin:
    """Return the origin of an error, by the line above its chain and the first frame of its last traceback."""
    above = next((line for line in reversed(lines[:first]) if line and not _REMOTE.fullmatch(line)), "")
    if _HARMLESS.match(above) or any(map(_CONTINUING_THREAD.match, lines[header + 1 : header + 2])):
        return ErrorOrigin.HARMLESS
    return ErrorOrigin.ELSEWHERE if _ELSEWHERE.match(above) else ErrorOrigin.PYTHON


def _next_in_chain(lines: Sequence[str], end: int) -> int | None:
    """Return the header of the exception that follows in a chain on the one that ends at `end`, if any."""
    following = [at for at in range(end, len(lines)) if lines[at] and not _REMOTE.fullmatch(lines[at])][:2]
    chained = len(following) == 2 and _CHAINED.fullmatch(lines[following[0]])  # noqa: PLR2004 - a line and a header
    return following[1] if chained and _begins_another(lines[following[1]]) else None


def _count_lines_after(lines: Sequence[str], logged: LoggedError, errors: Sequence[LoggedError]) -> int:
    """Count the lines of the program after an exception; indented ones belong to its text."""
    # While Python shuts down, threads may still write errors, each below a line that says where it was raised.
    others = {at for other in errors if other.origin < logged.origin for at in range(other.first - 1, other.end)}
    return sum(
        bool(line) and line[0] != " " and at not in others and not is_native_frame(line) and not is_log_line(line)
        for at, line in enumerate(lines[logged.exception + 1 :], start=logged.exception + 1)
    )


def _begins_another(line: str) -> bool:
    """Whether a line begins something other than an exception's text."""
    patterns = (_HEADER, _GROUP_HEADER, _BOX_HEADER, _TERMINATE, _FATAL, _CHAINED)
    return any(pattern.fullmatch(line) for pattern in patterns) or any(
        pattern.match(line) for pattern in (_HARMLESS, _ELSEWHERE)
    )


def _skip_indented(lines: Sequence[str], index: int) -> int:
    """Return the index of the first line, from `index` on, that is neither indented nor blank."""
    while index < len(lines) and (not lines[index] or lines[index][0] == " "):
        index += 1
    return index


_READERS = {
    _HEADER: _read_traceback,
    _SYNTAX_HEADER: _read_syntax_error,
    _GROUP_HEADER: _read_group,
    _BOX_HEADER: _read_box,
    _PANEL_HEADER: _read_panel,
    _TERMINATE: _read_native,
    _FATAL: _read_fatal,
    _NOT_FOUND: _read_not_found,
}
"""The functions that parse errors, by the pattern of the first line."""
