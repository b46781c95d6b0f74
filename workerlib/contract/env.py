"""The environment variables of a worker: nodeclient writes them, and the training process reads them.

docs/reference.md and TORCHRUN.md list all of them. Those without `COORDINATORD_` have the same meaning as under
torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py), so a script written for torchrun finds all
that it expects. The environment of a process that torchrun started can be read as well. Standard library only.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

PROGRESS = "COORDINATORD_PROGRESS"
"""The slot of this worker as PATH:BYTE: the file with the slots of all workers of its node, and where its own
begins."""

KEEP = "COORDINATORD_KEEP"
"""The path of nodeclient's Unix socket for kept state."""

STACKS = "COORDINATORD_STACKS"
"""The path of nodeclient's Unix socket over which it asks this worker where it stands; see `responder`."""

DIGESTS = "COORDINATORD_DIGESTS"
"""The variable with which a user switches off the digests by which replicas are compared: by the value 0."""

ROUNDS = "COORDINATORD_ROUNDS"
"""The path of nodeclient's Unix socket for workers that go into another round as the same process."""

SLOT_BYTES = 128
"""The size of a slot: shared memory into which a worker writes its progress, and which nodeclient reads when it likes.
It takes two cache lines, so that no worker's stores slow down another's.

A slot begins with three 64-bit words in the host's byte order: the last step, the time when it was done, and the
exclusive or of both. The time is in nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. The third word
shows a reader whether the first two belong together, since other processes may see the stores in any order. A slot of
zeros has not been written yet.

The first two bytes of the fourth word are for the exit code of the worker's program, which is written into both. The
code is known once the last word shows that the program is over and both bytes are the same. Only warm workers write
them.

The next four words are the section that the worker is in, see `pack_section`. Then come three words of a digest of its
state, see `pack_digest`. The next word is the time of the worker's first step, 0 before that. The one after that is 1
once the training of the worker is over, though its script may go on. The last word is the time at which the program of
a warm worker was over, 0 before that. The rest is 0."""

SLOTS_NAME = "coordinatord-steps"
"""The name of the file with the slots, as /proc shows it."""

CODE_AT, SECTION_AT, DIGEST_AT, FIRST_STEP_AT, TRAINED_AT, OVER_AT = 3, 4, 8, 11, 12, 15
"""The indices of the word with the exit code, of the first words of the section and of the digest, of the time of the
first step, of the word that says that training is over, and of the time at which the program was over."""

SECTION_NAME_BYTES = 16
"""The length of the name of a section: two words."""

SECTION_S_MAX = 86_400
"""The longest limit of a section: a day, as in the coordinator's protocol."""

_LIMIT_BITS = 24
"""The lower bits of a section's first word, for its limit in seconds. The others have its beginning in milliseconds."""

_DIGEST_BITS = 32
"""The lower bits of a digest's second word, for the digest itself, a crc32. The upper ones have the shard."""

DIGEST_WORDS = 3

STEP_MAX = 2**53 - 1
"""The highest step that can be reported, also to the coordinator: up to here floats and numbers of JSON are exact."""

STEPS_TO_COME = 2**64 - 1
"""The step in the slot of a worker that will report its steps, and has done none yet."""

ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""The variable that sets what torch's watchdog does when a collective of NCCL has failed: with 0 nothing, with 1 and 2
it aborts the process group, and with 1 and 3 it ends the process (ProcessGroupNCCL.hpp of torch 2.13)."""

DEFAULTS = {ERROR_HANDLING: "1"}
"""Defaults for workers: a worker gets `{**DEFAULTS, **os.environ, **environment.to_environ()}`, with nodeclient's
`os.environ`.

The value is torchrun's: a collective that failed or timed out ends its process instead of hanging."""

NO_SECTION = (0, 0, 0, 0)
"""The words in the slot of a worker that is in no section."""


def pack_section(name: str, limit_s: float, began_ns: int) -> tuple[int, int, int, int]:
    """Return the words of a slot for a section: its beginning and limit, two words of name, and a check word.

    `began_ns` is in nanoseconds of CLOCK_MONOTONIC. A name that is too long is cut. The check word combines the others
    by exclusive or: it shows a reader whether they belong together.
    """
    limit = max(1, math.ceil(min(limit_s, SECTION_S_MAX)))
    first = (began_ns // 1_000_000) << _LIMIT_BITS | limit
    named = name.encode()[:SECTION_NAME_BYTES].decode(errors="ignore").encode().ljust(SECTION_NAME_BYTES, b"\0")
    second, third = int.from_bytes(named[:8], "big"), int.from_bytes(named[8:], "big")
    return first, second, third, first ^ second ^ third


def unpack_section(words: Sequence[int]) -> tuple[str, int, int] | None:
    """Return the name, the limit in seconds and the beginning in nanoseconds of a section; None for no section.

    Raises `ValueError` for words that do not belong together, since they are just being written.
    """
    first, second, third, check = words
    if not first:
        return None
    if first ^ second ^ third != check:
        raise ValueError("the section is being written")
    name = (second.to_bytes(8, "big") + third.to_bytes(8, "big")).rstrip(b"\0").decode(errors="replace")
    return name[:SECTION_NAME_BYTES], first & (2**_LIMIT_BITS - 1), (first >> _LIMIT_BITS) * 1_000_000


def pack_digest(step: int, shard: int, digest: int) -> tuple[int, int, int]:
    """Return the words of a slot for the 32-bit digest of a worker's shard of the state after a step.

    They are the step plus 1, the shard and the digest in one word, and the exclusive or of both as in a section.
    """
    first, second = step + 1, shard << _DIGEST_BITS | digest
    return first, second, first ^ second


def unpack_digest(words: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the step, the shard and the digest; None for no digest.

    Raises `ValueError` for words that do not belong together, since they are just being written.
    """
    first, second, check = words
    if not first:
        return None
    if first ^ second != check:
        raise ValueError("the digest is being written")
    return first - 1, second >> _DIGEST_BITS, second & (2**_DIGEST_BITS - 1)


_REASON = "COORDINATORD_REASON"
"""The one variable that may be missing or empty: torchrun gives no reason."""

_NUMBER = re.compile("[0-9]{1,18}")
"""A number without sign, space or underscore, which fits 64 bits."""


class NotLaunchedError(RuntimeError):
    """No launcher started this process, or its environment is damaged; the text says what to do."""


def _from(variable: str, torchrun: str | None = None) -> dict[str, str | None]:
    """Return the metadata of a field with this variable; `torchrun` takes its place where torchrun is the launcher."""
    return {"variable": variable, "torchrun": torchrun}


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """The environment of one worker; ranks count from 0."""

    rank: int = field(metadata=_from("RANK"))
    """The rank among all workers of the round."""
    local_rank: int = field(metadata=_from("LOCAL_RANK"))
    """The rank on this node; always 0 if each worker sees only its own GPU (`--virtual-local-rank`)."""
    world_size: int = field(metadata=_from("WORLD_SIZE"))
    local_world_size: int = field(metadata=_from("LOCAL_WORLD_SIZE"))
    group_rank: int = field(metadata=_from("GROUP_RANK"))
    """The rank of this node among the nodes of the round."""
    group_world_size: int = field(metadata=_from("GROUP_WORLD_SIZE"))
    """The number of nodes in the round."""
    role: str = field(metadata=_from("ROLE_NAME"))
    role_rank: int = field(metadata=_from("ROLE_RANK"))
    """The rank among the workers with the same role."""
    role_world_size: int = field(metadata=_from("ROLE_WORLD_SIZE"))
    master_address: str = field(metadata=_from("MASTER_ADDR"))
    """Where rank 0 serves the store of `init_process_group`."""
    master_port: int = field(metadata=_from("MASTER_PORT"))
    restart_count: int = field(metadata=_from("TORCHELASTIC_RESTART_COUNT"))
    """How many restarts of the run's budget are used up; the same on all nodes."""
    max_restarts: int = field(metadata=_from("TORCHELASTIC_MAX_RESTARTS"))
    job: str = field(metadata=_from("COORDINATORD_JOB", "TORCHELASTIC_RUN_ID"))
    run: str = field(metadata=_from("COORDINATORD_RUN", "TORCHELASTIC_RUN_ID"))
    """One execution of the job, from join to outcome."""
    round: int = field(metadata=_from("COORDINATORD_ROUND", "TORCHELASTIC_RESTART_COUNT"))
    """The number of this formation of the worker group; within a run it only goes up."""
    node: str = field(metadata=_from("COORDINATORD_NODE", "GROUP_RANK"))
    """The node id; the same in all rounds."""
    worker: int = field(metadata=_from("COORDINATORD_WORKER", "LOCAL_RANK"))
    """The number of this worker on its node, by which nodeclient knows it; no two workers of a node have the same."""
    reason: str = field(metadata=_from(_REASON))
    """Why this round was formed, in words; empty if torchrun formed it."""

    def to_environ(self) -> dict[str, str]:
        """Return the variables that are added to the environment that a worker inherits."""
        environ = {each.metadata["variable"]: str(getattr(self, each.name)) for each in fields(self)}
        environ["TORCHELASTIC_RUN_ID"] = self.job  # torch takes it as the sign of an elastic launch
        # Rank 0 serves the store, at a port that is new in each round, so no key of an earlier round is found in it.
        environ["TORCHELASTIC_USE_AGENT_STORE"] = str(False)
        return escape_for_locale(environ)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerEnvironment:
        """Read the variables. Raises `NotLaunchedError`, which names a variable that is missing or malformed."""
        values = {each.name: _read(environ, each.type, **each.metadata) for each in fields(cls)}
        return cls(**values)  # type: ignore[arg-type]  # `_read` goes by the fields' own types


def escape_for_locale(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the characters escaped that this host's locale lacks.

    The text of an exception or of an operator may come from a host with another locale.
    """
    encoding = sys.getfilesystemencoding()
    return {name: value.encode(encoding, "backslashreplace").decode(encoding) for name, value in environ.items()}


def _read(environ: Mapping[str, str], kind: object, variable: str, torchrun: str | None) -> int | str:
    if variable not in environ and torchrun is not None:
        variable = torchrun
    text = environ.get(variable, "" if variable == _REASON else None)
    if text is None:
        raise _not_launched(f"the environment variable {variable} is missing")
    if kind == "int":
        if not _NUMBER.fullmatch(text):
            raise _not_launched(f"the environment variable {variable} is {text!r}, not a number")
        return int(text)
    if not text and variable != _REASON:
        raise _not_launched(f"the environment variable {variable} is empty")
    return text


def _not_launched(problem: str) -> NotLaunchedError:
    return NotLaunchedError(
        f"{problem}, so this process does not know its rank: a launcher has to start it. On one host: "
        "nodeclient join --standalone -- python train.py; on several, on each of them: "
        "nodeclient join --coord HOST -- python train.py (torchrun train.py works as well)."
    )
