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
"""The exit codes of a Python that KeyboardInterrupt ends, of a shell around it, and of either if it is killed first."""

BUFFERED_BYTES_MAX = 1024 * 1024
"""The limit of hidden bytes: a thousand tracebacks. Beyond that they are shown."""

_RANK = re.compile(rb"^(?:\[rank\d+\]: ?)+", re.MULTILINE)
"""torch's prefix of each line of a traceback, once for each process group."""

_FIRST = re.compile(
    rb"^(?:\[rank\d+\]: ?)*(?:Traceback \(most recent call last\):|Exception ignored in|Process \S+:\r?$)", re.MULTILINE
)
"""The first line of a traceback, or the line that Python or multiprocessing writes before it."""

_LINK = re.compile(rb"During handling of the above exception|The above exception was the direct cause")
"""The line between two tracebacks of a chain, the last of which ended the process."""

_INTERRUPT = b"KeyboardInterrupt"


class InterruptFilter(Sink):
    """Passes bytes to another sink, and after a SIGINT hides tracebacks of KeyboardInterrupt.

    Only the last line of a traceback says what it is, so each one is buffered until that line. One of KeyboardInterrupt
    stays buffered until the worker exits: if something else has ended it, it is shown after all. Tracebacks in a chain
    (`During handling of the above exception`) are shown or hidden together, by the last one.
    """

    def __init__(self, sink: Sink, sigint: Event) -> None:
        """Pass bytes to `sink`; `sigint` is set once SIGINT was passed on to the workers of the round."""
        self._sink = sink
        self._sigint = sigint
        self._interrupted = b""
        """Tracebacks of KeyboardInterrupt, which are shown only if something else ends the worker."""
        self._chain: list[bytes] = []
        """The lines of the current traceback, and of those before it in its chain."""
        self._exception_line = b""
        """The last line of the current traceback, which has the exception; empty before it comes."""
        self._partial = b""
        """The incomplete line after the chain."""
        self._buffered = 0
        """The number of all buffered bytes."""
        self._ended = False
        self._exit_code: int | None = None
        """That of the worker, once it is known. Its children may write after its exit."""

    @property
    def needs_flush(self) -> bool:
        """Whether the sink needs a flush, or a traceback is buffered that is not known to be of KeyboardInterrupt."""
        return self._sink.needs_flush or bool(self._chain and not self._exception_line.startswith(_INTERRUPT))

    def write(self, chunk: bytes) -> None:
        """Pass on or buffer the next bytes."""
        self._buffered += len(chunk)
        begin = 0
        """Where the chunk has to be parsed from; what comes before is shown."""
        if not self._chain:
            first = _FIRST.search(chunk) if self._sigint.is_set() else None
            begin = len(chunk) if first is None else first.start()
        self._pass_on(chunk[:begin])
        if chunk[begin:]:
            *lines, self._partial = (self._partial + chunk[begin:]).split(b"\n")
            for line in lines:
                self._parse_line(line + b"\n")
            if not self._chain:
                self._release()
        if self._buffered > BUFFERED_BYTES_MAX:
            self._show_interrupts()
            self._release()

    def flush(self) -> None:
        """Show a traceback that is not known to be of KeyboardInterrupt: nothing more has come for a while."""
        if self._chain and not self._exception_line.startswith(_INTERRUPT):
            self._release()
        self._sink.flush()

    def end(self) -> None:
        """Show an incomplete chain, because no more bytes come. The exit of the worker may be unknown yet."""
        self._end_chain()
        self._release()
        self._ended = True
        if not self._interrupted:
            self._sink.end()

    def on_exit(self, exit_code: int) -> None:
        """Drop or show the tracebacks of KeyboardInterrupt; `exit_code` is as in `subprocess`.

        If these are buffered, `end` has left the sink open for them.
        """
        had_interrupts = bool(self._interrupted)
        self._exit_code = exit_code
        self._end_chain()
        self._release()
        if had_interrupts and self._ended:
            self._sink.end()

    def _parse_line(self, line: bytes) -> None:
        """Handle a whole line while looking for tracebacks."""
        text = _RANK.sub(b"", plain(line.decode(errors="replace")).encode()).rstrip()
        begins = bool(_FIRST.match(text))
        # After its last line, a traceback goes on only with a link. A link clears `_exception_line` below, so the
        # traceback behind it belongs to the same chain.
        if self._chain and self._exception_line and text and not _LINK.match(text):
            self._end_chain()
        if not (self._chain or begins):
            self._pass_on(line)
            return
        self._chain.append(line)
        if begins or _LINK.match(text):
            self._exception_line = b""
        elif text and not text.startswith(b" ") and not self._exception_line:
            self._exception_line = text

    def _end_chain(self) -> None:
        """End the current chain; drop or show tracebacks of KeyboardInterrupt if it is known how the worker ended."""
        chain, self._chain = b"".join(self._chain), []
        if self._exception_line.startswith(_INTERRUPT):
            self._interrupted += chain
        else:
            self._pass_on(chain)
        self._exception_line = b""
        if self._exit_code in ENDED_BY_SIGINT:
            self._buffered -= len(self._interrupted)
            self._interrupted = b""
        elif self._exit_code is not None:
            self._show_interrupts()

    def _show_interrupts(self) -> None:
        interrupted, self._interrupted = self._interrupted, b""
        self._pass_on(interrupted)

    def _release(self) -> None:
        """Show the current chain and the incomplete line."""
        chain, self._chain, self._exception_line = b"".join(self._chain), [], b""
        partial, self._partial = self._partial, b""
        self._pass_on(chain + partial)

    def _pass_on(self, text: bytes) -> None:
        if text:
            self._buffered -= len(text)
            self._sink.write(text)
