"""Finds out why a worker failed, from the end of its stderr, its error file and the kernel's counters.

The script need not do anything for that. An error file, which `workerlib.record` or torch's `@record` writes, only
makes the result more exact.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from coordinatord.protocol.exit_codes import signal_behind
from coordinatord.protocol.fields import EARLY_LINES_MAX, LAST_LINES_MAX, LINE_MAX, LOG_PATH_MAX
from coordinatord.protocol.messages import Ended, LastOutput
from coordinatord.protocol.text import clip, sized
from nodeclient.core.events import Diagnosis
from nodeclient.diagnosis import oom, tracebacks
from nodeclient.diagnosis.error_file import RecordedError, read_error_file
from nodeclient.diagnosis.report_text import CONTEXT_CAPTION
from nodeclient.diagnosis.stderr_text import last_lines, last_statement, program_lines, without_native_frames
from nodeclient.host.devices import THIS_HOST, Host
from nodeclient.host.kernel_log import read_records, xids
from nodeclient.output.output import Output

CONTEXT_LINES = 8
"""How many lines from before a traceback to show below it: they often have a library's warning about the cause. Of the
output of a worker that was killed by SIGKILL, as many of the last lines are shown."""

OUTER_LINES = 9
"""How many of the first lines of a long traceback to show: they have the frames of the script."""

EARLY_BYTES_MAX = 4_096
"""How many bytes of stderr to search for the last lines of a worker that exited with 0."""

_NOT_OOM = "not the kernel's OOM killer"

_DATA_LOADER_KILLED = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed")
"""The error of a worker that has lost a process of its DataLoader."""

_PROGRESS = re.compile(r".*\d%\|")
"""One state of tqdm's bar."""


class RoundDiagnoses:
    """Diagnoses the workers of one round from their output and their error files."""

    def __init__(self, output: Output, error_files: Sequence[Path]) -> None:
        """Create it before the workers start. `error_files` are theirs, by local rank."""
        self._output = output
        self._error_files = error_files
        self._kills = oom.count_kills()
        self._last_xid = max((xid.number for xid in xids(read_records())), default=-1)

    async def diagnose(self, local_rank: int, exit_code: int, pid: int) -> Diagnosis:
        """Find out why a worker ended, once the pump has moved its last output."""
        stderr = await self._output.end_of_stderr(local_rank)
        # In a thread: it reads files, and the worker may have made one of them large.
        found = await asyncio.to_thread(diagnose, exit_code, pid, self._error_files[local_rank], stderr, self._kills)
        records = await asyncio.to_thread(read_records)
        codes = tuple(xid.code for xid in xids(records) if xid.number > self._last_xid)
        return replace(found, xids=codes, log=log_text(self._output.stderr_log(local_rank)))


async def early_output(ended: Sequence[Ended], output: Output, ranks: Sequence[int]) -> LastOutput | None:
    """Return the last output of the worker that was the first to exit with 0; None if it is not on this node.

    Other workers may have failed because that worker left them. Call this once the round is over. `ranks` are those of
    the node's workers, by local rank.
    """
    if not ended or ended[0].rank not in ranks:
        return None
    local_rank = ranks.index(ended[0].rank)
    written = (await output.end_of_stderr(local_rank))[-EARLY_BYTES_MAX:].decode(errors="replace")
    shown = [clip(line, LINE_MAX) for line in without_native_frames(last_lines(written)) if line.strip()]
    return LastOutput(tuple(shown[-EARLY_LINES_MAX:]), log_text(output.stderr_log(local_rank)))


def log_text(log: Path | None) -> str:
    """Return the path of a log for a message; empty if there is none, or no message can hold it."""
    text = "" if log is None else str(log)
    return text if text.isprintable() and len(text) <= LOG_PATH_MAX else ""


def diagnose(
    exit_code: int,
    pid: int,
    error_file: Path | None,
    stderr: bytes,
    oom_before: oom.OomKills,
    host: Host = THIS_HOST,
) -> Diagnosis:
    """Find out why a worker ended. Never raises; reads a few small files.

    `exit_code` is as in `subprocess`. `stderr` is the end of the worker's stderr, long enough for the stacks that C++
    writes after a traceback. `oom_before` was counted before the worker was started.
    """
    if exit_code == 0:
        return Diagnosis(pid=pid)
    written = last_lines(stderr.decode(errors="replace"))
    signum = signal_behind(exit_code)
    logged = tracebacks.find(written, killed=signum is not None)
    record = read_error_file(error_file) if error_file else None
    if logged is not None:
        error, shown = logged.error, _shortened(_with_context(written, logged))
    elif signum == signal.SIGKILL:
        # After SIGKILL a worker writes nothing, and earlier warnings of libraries are unrelated to its end.
        error, shown = "", program_lines(written)[-CONTEXT_LINES:]
    else:
        error, shown = "", without_native_frames(written)[-LAST_LINES_MAX:]
    if record is not None:
        call_stack = last_lines(record.call_stack)
        error = _error_line(record, call_stack) or error
        if logged is None and call_stack:
            shown = _shortened(without_native_frames(call_stack))
    finding = _explain_kill(signum, pid, oom_before, host) or oom.explain_oversized(error, host)
    # Without a count of the cgroup's kills, it may have been the OOM killer all the same.
    if not finding and _DATA_LOADER_KILLED.search("\n".join((error, *shown))) and oom_before.cgroup is not None:
        finding = f"some process killed the DataLoader's worker, {_NOT_OOM}"
    if not error and signum is None and not finding:
        finding = _last_statement(written)
    return Diagnosis(pid, finding, error, tuple(shown), final=record is not None and record.final)


def _last_statement(written: Sequence[str]) -> str:
    """Quote the last statement of a program that ended by itself without an exception: it may be that of `sys.exit`."""
    said = last_statement(line for line in program_lines(written) if not _PROGRESS.match(line))
    return f"its last output: {said}" if said else ""


def _error_line(record: RecordedError, call_stack: Sequence[str]) -> str:
    """Return the error in an error file in one line; empty if there is none."""
    error, _ = tracebacks.fold(last_lines(record.message))
    if error:
        return error
    logged = tracebacks.find(call_stack, killed=False)
    return logged.error if logged else ""


def _with_context(written: Sequence[str], logged: tracebacks.LoggedError) -> list[str]:
    """Return the lines of an error, and then some that came before it. An error that was also logged is shown once."""
    repeated = {at for earlier in tracebacks.repeated(written, logged) for at in earlier}
    others = [line for at, line in enumerate(written[: logged.first]) if at not in repeated]
    before = [line for line in without_native_frames(others) if line]
    text = without_native_frames(written[logged.first :])
    room = min(len(before), CONTEXT_LINES, LAST_LINES_MAX - len(text) - 1)
    return [*text, CONTEXT_CAPTION, *before[-room:]] if room > 0 else text


def _shortened(lines: Sequence[str]) -> Sequence[str]:
    """Cut the middle out of a long text. The marks that Python writes below lines of source are dropped first."""
    if len(lines) > LAST_LINES_MAX:
        lines = [line for line in lines if line.strip(" ^~|")]
    if len(lines) <= LAST_LINES_MAX:
        return lines
    inner = LAST_LINES_MAX - OUTER_LINES - 1
    return [*lines[:OUTER_LINES], f"  ... {len(lines) - OUTER_LINES - inner} lines ...", *lines[-inner:]]


def _explain_kill(signum: int | None, pid: int, before: oom.OomKills, host: Host) -> str:
    """Say who killed the worker by SIGKILL; after another end, that the OOM killer ended a process of its cgroup.

    Return an empty text if neither is known.
    """
    kill = oom.kill_since(before, host)
    if signum != signal.SIGKILL:
        if kill is None or not kill.certain:
            return ""
        return f"the kernel's OOM killer ended a process of its cgroup meanwhile ({kill.reason})"
    if kill is None:
        return "" if before.cgroup is None else f"some process sent it, {_NOT_OOM}"
    size = oom.memory_of_killed(pid, host)
    held = "" if size is None else f"; it held {sized(size)}"
    return f"killed by the kernel's OOM killer ({kill.reason}){held}"
