"""Parses the values of flags and of their variables: each function takes the text, and returns the value.

All of them raise `argparse.ArgumentTypeError`, mostly with an example of a valid value.
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import socket
from collections.abc import Sequence

from coordinatord.protocol.fields import (
    COUNTER_MAX,
    DEFAULT_PORT,
    FACTOR_MAX,
    NAME_MAX,
    RANKS_MAX,
    SENTENCE_MAX,
    WINDOW_RESTARTS_MAX,
    WINDOW_S_MAX,
    WORKERS_MAX,
)
from coordinatord.protocol.ip_addresses import Endpoint, parse_endpoint
from coordinatord.protocol.kept_state import KEEP_STEPS_MAX
from coordinatord.runtime.settings import duration, number, seconds
from nodeclient.output.output_settings import Choice, Streams

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
"""A whole number that is not too long for `int`."""

_STREAMS = re.compile(r"[0-3]|\d{1,9}:[0-3](?:,\d{1,9}:[0-3])*", re.ASCII)
"""The format of torchrun's `--redirects`, except that torchrun allows only local ranks of one digit."""

_SIZE = re.compile(r"(?P<number>\d{1,15}) ?(?P<unit>[kKmMgGtT]?)(?P<binary>i?)[bB]?", re.ASCII)

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

ROTATE_BYTES_MIN = 10_000
"""The smallest size at which a log is rotated: smaller logs would be rotated all the time."""

KEEP_BYTES_MIN = 1_000_000
"""The smallest memory for kept state: any model takes more, so a smaller number lacks its unit, such as 64 for 64GB."""

RATE_MIN = 2_000_000
"""The lowest rate of transfers between nodes, which abort a transfer that is slower than half of it."""

HANG_TIMEOUT_MIN = 1.0
"""The shortest hang timeout: a hang shows in two looks at the workers, and these are at least this far apart."""

LAGGARD_FACTOR_MIN = 1.05
"""The smallest slowdown of a laggard. A drain costs a stop and a start, and a smaller delay may be chance."""

_PERCENT_MAX = 90
"""The largest percentage of the memory for kept state: workers need memory too."""

_UNSUITABLE = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)
"""Signals that no flag may name: the first two cannot be handled, and the third reports a child's end."""

_YES = frozenset({"1", "true", "t", "yes", "y"})
_NO = frozenset({"0", "false", "f", "no", "n"})
"""The values of torch's `RendezvousParameters.get_as_bool`."""


def endpoint(text: str, least_port: int = 1) -> Endpoint:
    """Parse one `HOST[:PORT]`, or a URL as a browser shows it: `https://HOST:PORT/`.

    `least_port` is 0 if that port may stand for any free one.
    """
    plain = text.removeprefix("https://").removeprefix("http://").removesuffix("/")
    found = parse_endpoint(plain, DEFAULT_PORT, least_port)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST[:PORT], such as coord.example:29400 or [fd00::5]:29400")
    return found


def endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse `HOST[:PORT][,...]`; an IPv6 address with a port needs brackets."""
    return tuple(endpoint(part.strip()) for part in text.split(","))


def endpoints_of_torchrun(text: str) -> tuple[Endpoint, ...]:
    """Parse the same by torchrun's rules: the text may be empty, and the port 0 stands for any free one."""
    return tuple(endpoint(part.strip(), least_port=0) for part in text.split(",")) if text else ()


def node_range(text: str) -> tuple[int, int]:
    """Parse `N`, `MIN:MAX` or `MIN:`."""
    least, colon, most = text.partition(":")
    try:
        low = int(least)
        high = int(most) if most else (RANKS_MAX if colon else low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no N, MIN:MAX or MIN:, such as 4 or 2:8") from None
    if not 1 <= low <= high <= RANKS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 <= MIN <= MAX")
    return low, high


def names(text: str) -> tuple[str, ...]:
    """Parse words separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def count(text: str) -> int:
    """Parse an integer from 0 upward."""
    return _whole(text, 0, COUNTER_MAX, "a whole number, 0 or more")


def restarts(text: str) -> tuple[int, float | None]:
    """Parse a number of restarts, and the window in which they are counted if there is one: `3`, or `3/6h`."""
    most_text, has_window, window = text.partition("/")
    if not has_window:
        return count(most_text), None
    most, window_s = count(most_text), duration(window)
    if most > WINDOW_RESTARTS_MAX or not 1 <= window_s <= WINDOW_S_MAX:
        days = WINDOW_S_MAX // 86_400
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected at most {WINDOW_RESTARTS_MAX} restarts, within 1s to {days}d, such as 3/6h"
        )
    return most, window_s


def retained_rounds(text: str) -> int | None:
    """Parse an integer from 1 upward, or `all`, which is None."""
    return None if text == "all" else _whole(text, 1, COUNTER_MAX, "a number of rounds, 1 or more, or all")


def retained_steps(text: str) -> int:
    """Parse an integer from 1 upward."""
    return _whole(text, 1, KEEP_STEPS_MAX, f"a number of steps, 1 to {KEEP_STEPS_MAX}")


def slots(text: str) -> int:
    """Parse the number of workers of a host, which MPI and DeepSpeed call its slots."""
    return _whole(text, 1, WORKERS_MAX, f"a number of workers, 1 to {WORKERS_MAX}")


def _whole(text: str, least: int, most: int, expected: str) -> int:
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return int(text)


def hang_timeout(text: str) -> float:
    """Parse the longest time without a step; `off` is 0."""
    try:
        return 0.0 if text == "off" else seconds(text, HANG_TIMEOUT_MIN)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or off") from error


def laggard_factor(text: str) -> float:
    """Parse the slowdown of a step above which a laggard's node is drained."""
    expected = f"how many times as long a step takes, from {LAGGARD_FACTOR_MIN:g} to {FACTOR_MAX:g}, such as 1.2"
    return number(text, LAGGARD_FACTOR_MIN, FACTOR_MAX, expected)


def name(text: str) -> str:
    """Parse a name or an address: at most 128 visible characters, without blanks."""
    if not text:
        raise argparse.ArgumentTypeError("'': expected a name")
    if len(text) > NAME_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}...: {len(text)} characters, expected at most {NAME_MAX}")
    if not text.isprintable() or any(map(str.isspace, text)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a name without spaces and control characters")
    return text


def address(text: str) -> str:
    """Parse an address of this host. A name is resolved here, because it may mean another host elsewhere."""
    try:
        return str(socket.getaddrinfo(name(text), None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no address and cannot be looked up") from error


def topology(text: str) -> str:
    """Parse the key of a topology: a name, or nothing."""
    return name(text) if text else ""


def streams(text: str) -> Choice:
    """Parse a choice of streams: `3` for all workers, or `0:1,12:3` by local rank."""
    if not _STREAMS.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or that by local rank, such as 0:1,12:3"
        )
    if ":" not in text:
        return Choice(Streams(int(text)))
    pairs = (pair.split(":") for pair in text.split(","))
    return Choice(by_local_rank={int(local_rank): Streams(int(number)) for local_rank, number in pairs})


def local_ranks(text: str) -> frozenset[int] | None:
    """Parse `0,1,2`; return None for an empty text, which stands for all local ranks."""
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(map(_WHOLE.fullmatch, parts)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected local ranks, such as 0,1,2")
    return frozenset(map(int, parts))


def filter_words(text: str) -> tuple[str, ...]:
    """Parse the words of a filter, separated by commas; a comma in a word is doubled. Empty words are dropped."""
    whole = (part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    return tuple(part for part in whole if part)


def filter_words_joined(parts: Sequence[str]) -> str:
    """Format a list of words for `filter_words`."""
    return ",".join(part.replace(",", ",,") for part in parts)


def size(
    text: str, least: int = ROTATE_BYTES_MIN, expected: str = "a size, such as 100MB or 2G, of at least 10k"
) -> int:
    """Parse a number of bytes, such as `100MB` or `64MiB`."""
    match = _SIZE.fullmatch(text)
    length = 0
    if match is not None:
        length = int(match["number"]) * (1024 if match["binary"] else 1000) ** _POWERS[match["unit"].lower()]
    if length < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return length


def memory_share(text: str) -> int | float:
    """Parse a number of bytes, or a share of the memory such as `25%`, which is 0.25; 0 is none."""
    if text == "0":
        return 0
    share = text.removesuffix("%")
    if share == text:
        return size(text, KEEP_BYTES_MIN, "a size, such as 64GB, of at least 1MB, a share, such as 25%, or 0")
    if not _WHOLE.fullmatch(share) or not 1 <= int(share) <= _PERCENT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share, such as 25%, of at most {_PERCENT_MAX}%")
    return int(share) / 100


def rate(text: str) -> int:
    """Parse a number of bytes a second, such as `100MB`; 0 is none."""
    return 0 if text == "0" else size(text, RATE_MIN, "bytes a second, such as 100MB, of at least 2MB, or 0")


def modules(text: str) -> tuple[str, ...]:
    """Parse names of Python modules, `torch,my.package`."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for module in found:
        if not all(word.isidentifier() for word in module.split(".")):
            raise argparse.ArgumentTypeError(f"{module!r} is no module name, such as torch or my.package")
    return found


def command(text: str) -> tuple[str, ...]:
    """Parse a command line by the rules of a shell, which does not run it: `/opt/check --gpus 'all of them'`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command line: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("expected a command, such as '/opt/check --all'")
    return words


def signals(text: str) -> tuple[signal.Signals, ...]:
    """Parse names of signals separated by commas."""
    return tuple(dict.fromkeys(_signal(part.strip()) for part in text.split(",")))


def _signal(text: str) -> signal.Signals:
    try:
        found = signal.Signals[text]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is no signal: expected names such as SIGTERM,SIGUSR1") from None
    if found in _UNSUITABLE:
        raise argparse.ArgumentTypeError(f"{text} cannot be handled: leave it out")
    return found


def pairs(text: str) -> dict[str, str]:
    """Parse `KEY=VALUE,...`; quotes around all of it, which a shell may leave, are removed."""
    text = text.strip()
    if text[:1] in {"'", '"'} and text[-1:] == text[:1]:
        text = text[1:-1]
    values = {}
    for pair in text.split(",") if text.strip() else ():
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise argparse.ArgumentTypeError(f"{pair!r}: expected KEY=VALUE, and commas only between such pairs")
        values[key] = value
    return values


def truth(text: str) -> bool:
    """Parse a truth value, as torchrun does in `--rdzv-conf`."""
    if text.lower() not in _YES | _NO:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 or 0")
    return text.lower() in _YES


def ranks(text: str) -> str:
    """Check that a text consists of ranks and ranges of ranks, separated by commas, and return it."""
    if not re.fullmatch(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ranks, such as 3 or 0-7,12")
    return text


def sentence(text: str) -> str:
    """Check that a text fits a message, and return it."""
    if len(text) > SENTENCE_MAX or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected one line of at most {SENTENCE_MAX} characters")
    return text
