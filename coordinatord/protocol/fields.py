"""The types of fields in messages and records: numbers and texts, each with its limit and the reason for it.

Data from outside that exceeds a limit is rejected, so no peer can fill the memory or a frame.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.schema import printable
from coordinatord.protocol.text import TEXT_MAX

DEFAULT_PORT = 29_400
"""The default port of a coordinator. It is that of torchrun's c10d rendezvous, so firewalls mostly let it through."""

PORT_MAX = 65_535

RANKS_MAX = 1_000_000
"""The limit of every rank, count and round size: ten times the largest public training job (about 100,000 GPUs)."""

WORKERS_MAX = 4_096
"""The limit of one node's workers: sixteen times the CPUs of the largest common hosts; more is a typing error."""

COUNTER_MAX = 2**31 - 1
"""The limit of rounds and restarts: at one a second, 68 years."""

DURATION_S_MAX = 86_400
"""The limit of a duration, a day: longer ones are mistakes in units."""

FACTOR_MAX = 1_000.0
"""The limit of a slowdown: a step that takes a thousand times as long is a hang."""

STEP_MAX = 2**53 - 1
"""The limit of steps: at a million a second, 285 years. JSON readers still represent each exactly."""

REQUEST_MAX = 2**62
"""The limit of one coordinator's questions: at a million a second, 146,000 years."""

HEARTBEAT_S_MIN = 0.1
"""The shortest heartbeat. Its lease of five heartbeats is half a second, and a busy host suspends a program for tenths
of a second. With a shorter one, such as a number in another unit, all nodes would be lost again and again."""

Seconds = Annotated[float, Meta(ge=0, le=DURATION_S_MAX)]
Grant = Annotated[float, Meta(ge=HEARTBEAT_S_MIN, le=DURATION_S_MAX)]
"""A heartbeat or a lease that the coordinator grants a node, in seconds."""
Count = Annotated[int, Meta(ge=0, le=RANKS_MAX)]
"""A rank, or a number of ranks or nodes."""
Counter = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]
"""A number that grows by one each time, such as that of a round."""
Step = Annotated[int, Meta(ge=0, le=STEP_MAX)]
LocalRank = Annotated[int, Meta(ge=0, le=WORKERS_MAX)]
RequestNumber = Annotated[int, Meta(ge=1, le=REQUEST_MAX)]
"""The number of a question; the answer to it has the same number."""
NAME_MAX = 128
"""The most characters of a `Name`."""
Name = Annotated[str, printable(NAME_MAX, least=1)]
"""Job ids, node ids, run ids, roles."""
Address = Annotated[str, printable(253, least=1)]
"""An IP address or a host name (253 is the limit of DNS, RFC 1035)."""
Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A process id in its host or container; 0 for none."""
Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]
Text = Annotated[str, printable(TEXT_MAX)]
"""A text for a person; see `text.clip`."""
SENTENCE_MAX = 512
"""The most characters of a `Sentence`: it holds one sentence, or the last line of a traceback."""
Sentence = Annotated[str, printable(SENTENCE_MAX)]
LINE_MAX = 240
"""The most characters of a `Line`: two rows of a wide terminal."""
LAST_LINES_MAX = 40
"""How many of a worker's last lines are sent: a traceback through torch has some 30."""
Line = Annotated[str, printable(LINE_MAX)]
LOG_PATH_MAX = 1_024
"""The most characters of a path of logs. A longer path is left out, since a part of it is useless."""
WorkerExit = Annotated[int, Meta(ge=-127, le=255)]
"""An exit code of `subprocess`: -n means death by signal n, which a shell reports as 128 + n."""

WINDOW_RESTARTS_MAX = 1_000
"""The limit of restarts within a window, since the time of each is kept: one in 43 minutes, for a month."""

WINDOW_S_MAX = 30 * 86_400
"""The limit of a window for restarts: a month, as long as the longest runs."""

Window = Annotated[float, Meta(ge=0, le=WINDOW_S_MAX)]

XIDS_MAX = 8
"""How many errors of GPUs a failure has: one fault of a GPU is logged as a handful of them."""

CONSEQUENCES_MAX = 8
"""How many workers a list of failures, early ends, stragglers or the like names; the others are counted."""

EARLY_LINES_MAX = 4
"""The most last lines that are sent of a worker that exited with 0. It has no traceback, but may say why it ended."""
