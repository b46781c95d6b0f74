"""The texts that a node shows its user. The agent and the shell decide when they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals

from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.messages import Assignment, Failure, Killed, Observed, Phase, RefusalCode, Refused
from coordinatord.protocol.text import listed, name_some
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Start
from nodeclient.core.host_health import GpuUse

SEARCHING = "looking for the coordinator"
"""The notice while no coordinator is found."""

GPU_PROCESSES_MAX = 4
"""How many processes that use a GPU are named; a few are enough to see whose they are."""

NOT_LET_IN = "not let in"
"""The notice while the coordinator does not let the node in yet."""


def failed(failure: Failure) -> str:
    """Return the notice that a worker failed, leaves its round because a collective failed, or could not be started.

    The reason of a failure is in the report, which follows when the root cause is known.
    """
    if not failure.pid:
        return f"the workers cannot be started: {failure.message}"
    if failure.left:
        return f"a collective failed on rank {failure.rank}, so it leaves its round; its process goes on"
    return f"worker of rank {failure.rank} failed: {describe_exit(failure.exit_code)}"


def ended_in_stop(rank: int, exit_code: int) -> str:
    """Return the notice that a worker ended with an error in a planned stop; it may have printed a traceback."""
    why = "that counts as no failure, since the stop ends the workers that it is connected to"
    return f"rank {rank} ended with {describe_exit(exit_code)} while its round was being stopped: {why}"


def starting(start: Start, workers: int) -> str:
    """Return the notice that the workers of this node are to be started."""
    place = start.assignment
    master = f"master {place.master_address}:{place.master_port}"
    return f"starting round {start.round}: {ranks(place, workers)}, {master}: {start.reason}"


def ranks(assignment: Assignment, workers: int) -> str:
    """Return which ranks of a round the workers of this node have."""
    last = assignment.first_rank + workers - 1
    own = f"rank {last}" if last == assignment.first_rank else f"ranks {assignment.first_rank} to {last}"
    return f"{own} of {assignment.world_size}"


def status(
    observed: Observed, assignment: Assignment | None, workers: int, waiting_for: str, *, connected: bool
) -> str:
    """Return where the node stands: what it waits for, or its `assignment` in the present round once it has one.

    `connected` tells whether it has a session with the coordinator.
    """
    if observed.phase is Phase.PREPARING:
        return f"preparing: the modules of --preload are being imported; {waiting_for}"
    if assignment is None or observed.phase is Phase.IDLE:
        return waiting_for
    text = f"round {observed.round}, {ranks(assignment, workers)}: {observed.phase}"
    return text if connected else f"{text}; the coordinator is out of reach"


DIFFERENT_STATES = (
    "ranks have different states after their first step, so each keeps its own, at intervals: the training can go on "
    "from them with the same number of workers only"
)
"""The notice that no part of the state is the same on all ranks. Sharded states differ anyway, and get no notice."""


def keeps_nothing(number: int) -> str:
    """Return the notice that `--persist` has no effect, because no worker keeps state."""
    return (
        f"--persist has had nothing to write: no worker of round {number} has called ctx.keep, so a later round "
        "begins from the script's own checkpoint"
    )


def lost(why: str, leaves_in_s: float | None, *, works: bool) -> str:
    """Return the notice that the coordinator is out of reach.

    `leaves_in_s` is how long a leaving node waits for it, None if it does not wait. `works` tells whether the node has
    workers.
    """
    text = f"lost the coordinator: {why}"
    if leaves_in_s is not None:
        return f"{text}; {_waits(leaves_in_s)}"
    return f"{text}; the workers go on" if works else text


def leaving(signum: int, grace_s: float | None, leaves_in_s: float | None, put_off_s: float | None) -> str:
    """Return the notice that the node leaves.

    `signum` is the signal, 0 if there was none; `grace_s` is how long its workers have, None if it has no workers;
    `leaves_in_s` is how long it waits for a coordinator that is out of reach, None if it does not; `put_off_s` is how
    long it stays because its training is over, None if it leaves at once.
    """
    text = f"{Signals(signum).name}: leaving" if signum else "leaving"
    if put_off_s is not None:
        text = f"{text} in {put_off_s:g} s, unless the job succeeds before, since its training is over"
    if leaves_in_s is not None:
        text = f"{text}; {_waits(leaves_in_s)}"
    return text if grace_s is None else f"{text}; workers get up to {grace_s:g} s to save, a second signal kills them"


LEFT_UNDECIDED = "left the job; no coordinator named a step that all save, so this node has written none to a disk"
"""The summary of a node whose workers keep state, and that has left by itself."""


def left(signum: int, summary: str) -> str:
    """Return the last line of a node that has left because of a signal, 0 if there was none."""
    return f"{Signals(signum).name}: {summary}" if signum else summary


def _waits(leaves_in_s: float) -> str:
    """Return the part of a notice about a leaving node that waits for a coordinator."""
    limit = f"no coordinator is back within {round(leaves_in_s, 1):g} s to name the step that all save"
    return f"this node leaves by itself if {limit}"


def cut_off(grace_s: float, settings: Settings) -> str:
    """Return the notice that the workers stop, since the coordinator was out of reach for `grace_s`."""
    text = f"out of touch with the coordinator for {grace_s:g} s: this node may have been replaced, its workers stop"
    text += f" and get up to {settings.stop_timeout_s:g} s to save"
    return (
        f"{text}; the search goes on for {settings.join_timeout_s:g} s; when the coordinator is back they start again"
    )


def killed(workers: Killed, signum: int, signalled_s: float, hung: str) -> str:
    """Return the notice that workers were killed before they saved their state, `signalled_s` after they got `signum`.

    `hung` says which worker of the round was known to hang; it is empty if none was.
    """
    subject = name_some(map(str, workers.ranks), workers.count, "rank")
    were, they = ("were", "they") if workers.count > 1 else ("was", "it")
    lost = f"what {they} had not saved is lost; {hung or 'see --stop-timeout'}"
    when = f"{round(signalled_s, 1):g} s after {Signals(signum).name}"
    return f"{subject} did not end within {workers.after_s:g} s and {were} killed, {when}: {lost}"


def gpus_in_use(gpus: Sequence[GpuUse]) -> str:
    """Return which GPUs have memory in use though the workers are dead, and who has it."""
    return f"memory of GPUs is in use: {'; '.join(map(_gpu_in_use, gpus))}"


def _gpu_in_use(gpu: GpuUse) -> str:
    processes = (f"process {process.pid} of {process.user}" for process in gpu.processes)
    users = listed(processes, len(gpu.processes), GPU_PROCESSES_MAX)
    return f"{gpu.used_bytes / 2**30:.1f} GiB of {gpu.name} by {users or 'no process that this node sees'}"


def step_not_common(step: int | None, hung: str, *, writes_checkpoints: bool) -> str:
    """Return the notice that not all workers reached, in time, the step that all were to keep before they end.

    `hung` says which worker of the round was known to hang; it is empty if none was.
    Workers that write a checkpoint at that step may have reached it without finishing the checkpoint.
    """
    goal = "the end of their step" if step is None else f"step {step:,}"
    done = f"come to {goal}"
    what = "each saves the last step that it has done"
    if writes_checkpoints:
        done = f"{done} and write a checkpoint" if step is None else f"write their checkpoint of {goal}"
        what = "they end without it"
    text = f"the workers of this round did not all {done} in time, so {what}"
    return f"{text}: steps may be done again; {hung or 'see --stop-timeout'}"


def not_let_in(error: str, waited_s: float) -> str:
    """Return the notice that the coordinator was reached but did not let this node in; `error` is its reason."""
    return f"{NOT_LET_IN} within {waited_s:g} s: {error}"


def unreported_success(error: str) -> str:
    """Return the notice that the only node of a round has succeeded without the coordinator."""
    text = "all workers succeeded, and this node was the only one of its round: the job is done"
    lost = "Once it is back it takes this node for lost, and a spare of the job, if there is one, trains on: end it"
    return f"{text}; the coordinator could not be notified: {error}. {lost}"


def search_ended(reason: str, phase: Phase, failure: Failure | None) -> str:
    """Return the notice of a node that stops searching for this reason, with its last, unreported result."""
    if phase is Phase.SUCCEEDED:
        return f"all workers of this node succeeded, but whether those of the others did is not known: {reason}"
    if failure is not None:
        how = describe_exit(failure.exit_code, left=failure.left)
        return f"worker of rank {failure.rank} failed ({how}), which could not be reported: {reason}"
    return reason


def refused(by: Refused) -> str:
    """Return the notice that the coordinator refuses this node, or that this node has no token that it may send."""
    return f"{NOT_LET_IN if by.code is RefusalCode.FORBIDDEN else 'refused by the coordinator'}: {by.message}"


def started(round_number: int, workers: int, folder: str, in_place: int = 0) -> str:
    """Return the notice that the workers of a round run; `folder` has their logs, if it is not empty.

    `in_place` is the number of workers that run in processes of the round before.
    """
    text = f"round {round_number}: {workers} worker{'s run' if workers > 1 else ' runs'}"
    if in_place:
        text = f"{text}, {in_place if in_place < workers else 'begun'} in place"
    return f"{text}, with logs in {folder}" if folder else text
