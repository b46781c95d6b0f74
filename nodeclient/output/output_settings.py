"""The user's settings for the workers' output; `nodeclient.config` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from pathlib import Path

from msgspec import Struct

ROTATIONS_KEPT = 5
"""The default number of old files, as in logrotate's examples."""


class Streams(IntFlag):
    """Streams of a worker, numbered as in torchrun's `--redirects` and `--tee`."""

    NONE = 0
    STDOUT = 1
    STDERR = 2
    BOTH = 3


class Choice(Struct, frozen=True):
    """Some streams of each worker."""

    default: Streams = Streams.NONE
    by_local_rank: Mapping[int, Streams] = {}
    """The exceptions from the default."""

    def of(self, local_rank: int) -> Streams:
        """Return the streams of one worker."""
        return self.by_local_rank.get(local_rank, self.default)


class Rotation(Struct, frozen=True):
    """The size in bytes at which a file is rotated, and the number of old files to keep."""

    size: int
    kept: int


class OutputSettings(Struct, frozen=True):
    """The destinations of streams: the terminal, except for `redirects`; with a `log_dir`, also files, for all."""

    log_dir: Path | None = None
    """`<log_dir>/<job>/<run>/round_<n>/<global rank>/{stdout,stderr}.log`; None: no files."""
    redirects: Choice = Choice()
    """The streams that do not go to the terminal; without a `log_dir` they go nowhere."""
    tee: Choice = Choice()
    """Streams that go to the terminal too, although `redirects` names them."""
    terminal_ranks: frozenset[int] | None = None
    """Local ranks that may write to the terminal and the filtered files; None: all of them."""
    stdout_filters: tuple[str, ...] = ()
    """Lines of stdout that contain any of these are copied to `filtered_stdout.log` of the round."""
    stderr_filters: tuple[str, ...] = ()
    """The same for stderr and `filtered_stderr.log`."""
    prefix: str | None = None
    """The template of the prefix of a line on the terminal; `lines.make_prefix` has its variables."""
    rotation: Rotation | None = None
    """When files are rotated; None: never."""
    retained_rounds: int | None = None
    """The number of rounds of the job whose files this host keeps; None: all."""

    def is_shown(self, local_rank: int) -> bool:
        """Whether lines of a worker may reach the terminal and the filtered files."""
        return self.terminal_ranks is None or local_rank in self.terminal_ranks

    def shown(self, local_rank: int) -> Streams:
        """Return the streams of a worker that go to the terminal."""
        if not self.is_shown(local_rank):
            return Streams.NONE
        return Streams.BOTH & ~self.redirects.of(local_rank) | self.tee.of(local_rank)
