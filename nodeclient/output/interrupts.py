"""Hides tracebacks of KeyboardInterrupt from the terminal, after the node has passed SIGINT to its workers.

Python prints a useless one for each process that SIGINT ends: the user has just pressed Ctrl-C. Log files keep it.
"""

from __future__ import annotations

import re
import signal
from threading import Event

from nodeclient.output.lines import plain
from nodeclient.output.streams import Sink

ENDED_BY_SIGINT = frozenset({-signal.SIGINT, 128 + signal.SIGINT, -signal.SIGKILL})
"""The exit codes of a Python that KeyboardInterrupt ends, of a shell around it, and of one that is killed meanwhile."""

HELD_BYTES_MAX = 1024 * 1024
"""The limit of hidden bytes: a thousand tracebacks. Beyond that they are shown."""

_RANK = re.compile(rb"^(?:\[rank\d+\]: ?)+", re.MULTILINE)
"""torch's prefix of each line of a traceback, once for each process group."""

_FIRST = re.compile(
    rb"^(?:\[rank\d+\]: ?)*(?:Traceback \(most recent call last\):|Exception ignored in|Process \S+:\r?$)", re.MULTILINE
)
"""The first line of a traceback, or a line of Python and its multiprocessing before some."""

_LINK = re.compile(rb"During handling of the above exception|The above exception was the direct cause")
"""The line between two tracebacks of a chain, the last of which ended the process."""

_INTERRUPT = b"KeyboardInterrupt"


class Interruptible(Sink):
    """A filter of a sink. After a SIGINT it buffers tracebacks: those of KeyboardInterrupt until the worker's exit."""

    def __init__(self, sink: Sink, interrupted: Event) -> None:
        """Stand before `sink`; `interrupted` is set once SIGINT was passed on to the workers of the round."""
        self._sink = sink
        self._sigint = interrupted
        self._interrupted = b""
        """Tracebacks of KeyboardInterrupt, which are shown if the worker does not end of it."""
        self._chain: list[bytes] = []
        """The lines of the current traceback, and of those before it in its chain."""
        self._last = b""
        """The last line of that traceback, with the exception; empty before it comes."""
        self._partial = b""
        """The incomplete line after these."""
        self._held = 0
        """The number of all buffered bytes."""
        self._ended = False

    @property
    def wants_quiet(self) -> bool:
        """Whether the traceback of another error is buffered."""
        return self._sink.wants_quiet or bool(self._chain and not self._last.startswith(_INTERRUPT))

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._held += len(chunk)
        first = _FIRST.search(chunk) if self._sigint.is_set() and not self._chain else None
        begin = 0 if self._chain else len(chunk) if first is None else first.start()
        self._pass_on(chunk[:begin])
        if chunk[begin:]:
            *lines, self._partial = (self._partial + chunk[begin:]).split(b"\n")
            for line in lines:
                self._take(line + b"\n")
            if not self._chain:
                self._release()
        if self._held > HELD_BYTES_MAX:
            self._release(self._interrupted)

    def quiet(self) -> None:
        """Show the traceback of another error, because nothing more comes."""
        if self._chain and not self._last.startswith(_INTERRUPT):
            self._release()
        self._sink.quiet()

    def end(self) -> None:
        """Show an incomplete chain, because no more bytes come. The exit of the worker may be unknown yet."""
        self._close()
        self._release()
        self._ended = True
        if not self._interrupted:
            self._sink.end()

    def note_exit(self, exit_code: int) -> None:
        """Decide by the worker's exit; `exit_code` is that of `subprocess`."""
        self._close()
        held = bool(self._interrupted)
        self._release(b"" if exit_code in ENDED_BY_SIGINT else self._interrupted)
        if held and self._ended:
            self._sink.end()

    def _take(self, line: bytes) -> None:
        """Handle a whole line while looking for tracebacks."""
        text = _RANK.sub(b"", plain(line.decode(errors="replace")).encode()).rstrip()
        begins = bool(_FIRST.match(text))
        if self._chain and self._last and text and not _LINK.match(text):
            is_linked = any(map(_LINK.search, self._chain[-2:]))
            if not (begins and is_linked):
                self._close()
        if not (self._chain or begins):
            self._pass_on(line)
            return
        self._chain.append(line)
        if begins or _LINK.match(text):
            self._last = b""
        elif text and not text.startswith(b" ") and not self._last:
            self._last = text

    def _close(self) -> None:
        """End the chain, with or without a following line."""
        chain, self._chain = b"".join(self._chain), []
        if self._last.startswith(_INTERRUPT):
            self._interrupted += chain
        else:
            self._pass_on(chain)
        self._last = b""

    def _release(self, interrupted: bytes | None = None) -> None:
        """Show the buffered lines; tracebacks of KeyboardInterrupt are replaced by `interrupted`, if given."""
        if interrupted is not None:
            self._interrupted = b""
        self._pass_on((interrupted or b"") + b"".join(self._chain) + self._partial)
        self._chain, self._last, self._partial = [], b"", b""

    def _pass_on(self, text: bytes) -> None:
        if text:
            self._held -= len(text)
            self._sink.write(text)
