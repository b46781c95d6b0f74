"""Repeats a request every second. A terminal shows the result in place; a pipe or file gets a block at each change.

The caller formats the result. Once the coordinator has answered, it may be unreachable for a while.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TypeVar

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import counted
from coordinatord.runtime.local_time import moment, now
from nodeclient.operate.client import Client, RequestError, pause
from nodeclient.operate.formatting import duration
from nodeclient.operate.terminal_info import Colour, TerminalInfo, terminal, write
from nodeclient.output.text_width import cut

POLL_EVERY_S = 1.0
"""The interval of requests: nodes report once a second."""

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Hides the cursor, prevents long lines from wrapping, and switches to the alternate screen, which has no history."""

LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Undoes `ENTER`."""

HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

QUIT = "q"

ROWS_UNKNOWN = 24
"""The default height of a terminal: that of the VT100, and of most since."""

Result = TypeVar("Result")


def watch_lines(
    fetch: Callable[[], Result], format_result: Callable[[Result], list[str]], gist: Callable[[Result], object]
) -> int:
    """Write the result of `fetch` whenever its `gist` has changed, until this program is ended.

    The gist leaves out ages, steps and the like, which change all the time.
    """
    last = fetch()
    write(format_result(last))
    last_error = ""
    while True:
        pause(POLL_EVERY_S)
        try:
            new = fetch()
        except RequestError as error:
            if str(error) != last_error:
                last_error = str(error)
                sys.stderr.write(f"nodeclient: {last_error}; trying again\n")
            continue
        last_error = ""
        if gist(new) != gist(last):
            write(format_result(new))
        last = new


def watch_screen(
    fetch: Callable[[], Result], format_result: Callable[[Result, TerminalInfo, int], list[str]], client: Client
) -> int:
    """Draw the result of `fetch` each second, until Ctrl-C or q. `format_result` gets the rows that are free, too."""
    result = fetch()  # the first error, such as that of a wrong command line, is shown on the normal screen
    fetched_at = time.monotonic()
    failure = ""
    try:
        with _screen() as screen:
            while True:
                title = f"{client.where}  {moment(now())}  (q to end)"
                if failure:
                    title = f"no answer for {duration(time.monotonic() - fetched_at)}: {failure}"
                screen.show(title, Colour.BAD if failure else Colour.FAINT, partial(format_result, result))
                if QUIT in screen.wait(POLL_EVERY_S):
                    return ExitCode.OK
                try:
                    result, fetched_at, failure = fetch(), time.monotonic(), ""
                except RequestError as error:
                    failure = str(error)
    except _InterruptedError as error:
        return 128 + error.signum


class _InterruptedError(OperationalError):
    """A signal ends this program, possibly during a long wait for an answer."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class _Screen:
    """This process's terminal while it shows the results."""

    def __init__(self, waking: int) -> None:
        """Prepare; bytes come to the descriptor `waking` with each signal."""
        self._out = sys.stdout.fileno()
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._waking = waking
        self._inputs = [waking] if self._keys is None else [waking, self._keys]
        self._settings = termios.tcgetattr(self._keys) if self._keys is not None else None

    def enter(self) -> None:
        """Switch to the alternate screen, without echo of keys and without line buffering."""
        if self._keys is not None:
            tty.setcbreak(self._keys)
        self._write(ENTER)

    def leave(self) -> None:
        with suppress(OSError):  # the program may end because the terminal is gone
            self._write(LEAVE)
        if self._keys is not None and self._settings is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._settings)

    def show(self, title: str, colour: Colour, draw: Callable[[TerminalInfo, int], list[str]]) -> None:
        """Redraw everything in one write, without flicker."""
        output = terminal()
        room = (output.rows or ROWS_UNKNOWN) - 2  # without the title and the empty line below it
        lines = draw(output, room)
        if len(lines) > room:
            lines = [*lines[: max(0, room - 1)], f"and {counted(len(lines) - room + 1, 'more line')}"]
        title = output.paint(title if output.columns is None else cut(title, output.columns), colour)
        # A line is erased before it is written. After a line as wide as the terminal, the cursor is still on its last
        # character, which would be erased.
        *above, last = (title, "", *lines)
        drawn = "".join(f"{END_OF_LINE}{line}\r\n" for line in above)
        self._write(f"{HOME}{drawn}{END_OF_SCREEN}{last}")

    def wait(self, seconds: float) -> str:
        """Wait for a key, a signal such as a change of size, or the timeout; return the key."""
        ready, _, _ = select.select(self._inputs, [], [], seconds)
        if self._waking in ready:
            os.read(self._waking, 4_096)
        if self._keys is None or self._keys not in ready:
            return ""
        keys = os.read(self._keys, 64)
        if not keys:
            self._inputs.remove(self._keys)
        return keys.decode(errors="replace")

    def suspend(self, *_: object) -> None:
        """Restore the terminal and suspend this process (Ctrl-Z); take the terminal again on continuation."""
        self.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self.suspend)
        self.enter()

    def _write(self, text: str) -> None:
        """Write without Python's buffer, which the signal handler `suspend` must not use amid a write."""
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._out, data) :]


@contextmanager
def _screen() -> Iterator[_Screen]:
    """Yield the terminal; restore it however this ends."""
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    screen = _Screen(waking)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    signal.signal(signal.SIGTSTP, screen.suspend)
    signal.signal(signal.SIGWINCH, lambda *_: None)  # its byte in the pipe wakes the program
    try:
        screen.enter()
        yield screen
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(signum, signal.SIG_IGN)  # the cleanup takes milliseconds, and then this program ends
        screen.leave()
        signal.set_wakeup_fd(-1)
        os.close(waking)
        os.close(woken)


def _end(signum: int, _: FrameType | None) -> None:
    raise _InterruptedError(signum)
