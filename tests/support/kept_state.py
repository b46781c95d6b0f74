"""The kept state of nodes, and the orders about it, for tests of the coordinator."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from coordinatord.protocol.kept_state import (
    Halt,
    Holding,
    Keeper,
    KeptParts,
    KeptStep,
    PersistedStep,
    PersistOffer,
    PersistOrder,
    PersistReport,
    PersistState,
    Resume,
)
from coordinatord.protocol.messages import Assignment, Desired

KEY = "0123456789abcdef" * 2
"""The key of each node that keeps state."""


def a_keeper(port: int = 9_000, options: str = "yes") -> Keeper | None:
    """Build the address of a node's kept state; None if the node keeps nothing.

    With `copies` the node takes copies, with `600s` it writes a step to a disk so often; `copies+600s` is both.
    """
    words = options.split("+")
    every_s = next((float(word[:-1]) for word in words if word[:-1].isdecimal()), None)
    offer = None if every_s is None else PersistOffer(every_s, 2)
    return Keeper(port, KEY, limit_bytes=2**30, persist=offer, takes_copies="copies" in words) if options else None


def kept_parts(
    round_number: int,
    step: int,
    ranks: range = range(1),
    *,
    world_size: int = 1,
    shards: int = 1,
    big: bool = True,
    small: bool = True,
    pending: bool = False,
    protected: bool = False,
    digest: int | None = None,
) -> KeptParts:
    """Build the kept parts of some ranks of a step; each rank has the shard of its own number."""
    return KeptParts(
        round=round_number,
        step=step,
        world_size=world_size,
        shards=shards,
        first_rank=ranks.start,
        ranks=len(ranks),
        first_shard=ranks.start % shards,
        big=big,
        small=small,
        pending=pending,
        protected=protected,
        digest=digest,
    )


def a_holding(steps: list[str], options: dict[str, str], assignment: Assignment | None, workers: int) -> Holding:
    """Build the kept state that a script describes: `1:96 1:100:7 shards=2 of=4 protected=yes`.

    Each step has its round, and perhaps its digest, as 7 of step 100. With `protected=100` it protects only that step.

    `written=100` is the last checkpoint that its script has written, `written=no` before the first one; `every=10`
    is the interval of saves, and `first=5,6` are the digests of different states after the first step. With
    `halts=yes` its workers can halt after a step that they are sent; with `halts=101` they are to halt after step
    101. `unkept=SGD` is what they do not keep, and `unstepped=1,2` are ranks that never call `ctx.step`. `pageable=why`
    is why their saves go into memory that is not page-locked.
    """
    first, world_size = (assignment.first_rank, assignment.world_size) if assignment else (0, workers)
    parts = (
        kept_parts(
            int(number),
            int(step),
            range(first, first + workers),
            world_size=int(options.get("of", world_size)),
            shards=int(options.get("shards", 1)),
            protected=options.get("protected") in {"yes", step},
            digest=int(digest[0]) if digest else None,
        )
        for number, step, *digest in (each.split(":") for each in steps)
    )
    halts = options.get("halts", "")
    return Holding(
        tuple(parts),
        interval_steps=int(options["every"]) if "every" in options else None,
        can_halt=bool(halts),
        halts_after=int(halts) if halts.isdecimal() else None,
        writes_checkpoints="written" in options,
        checkpointed=int(options["written"]) if options.get("written", "no") != "no" else None,
        first_states=tuple(int(digest) for digest in options["first"].split(",")) if "first" in options else (),
        unkept=options.get("unkept", ""),
        pageable=options.get("pageable", ""),
        unstepped=tuple(int(rank) for rank in options["unstepped"].split(",")) if "unstepped" in options else (),
    )


def wrote(puppets: Mapping[str, Any], words: list[str], options: dict[str, str]) -> dict[str, Holding]:
    """Build a node's report on its order to write, or on the steps on its disk: `write n1 written`, `found=e-1:1:100`.

    With `lacks=100` it finds step 100 no more, and with `unusable=digest` no step that it can use. `attempt=1` repeats
    its report on an earlier attempt.
    """
    puppet = puppets[words[0]]
    kept, order = puppet.observed.kept or Holding(()), puppet.desired.persist
    if order is not None:
        problem, attempt = options.get("why", ""), int(options.get("attempt", order.attempt))
        report = PersistReport(order.round, order.step, PersistState(words[1]), 1_000, problem, attempt)
        kept = replace(kept, persisting=report)
    if found := options.get("found"):
        run, number, step = found.split(":")
        size = int(options.get("of", 2))
        part = kept_parts(int(number), int(step), range(size), world_size=size, shards=int(options.get("shards", 1)))
        serial = 1 + max((step.serial for step in kept.persisted), default=0)
        kept = replace(kept, persisted=(PersistedStep(serial, run, (part,)), *kept.persisted))
    if lacks := options.get("lacks"):
        kept = replace(kept, persisted=tuple(step for step in kept.persisted if step.at.step != int(lacks)))
    if why := options.get("unusable"):
        kept = replace(kept, persisted=(), unusable=why)
    return {"kept": kept}


def kept_text(desired: Desired) -> str:
    """Describe which steps a node is to resume from, write, halt after, protect and copy, as the end of a sentence."""
    copies = (f", copying step {copy.step} of {copy.source.node}" for copy in desired.copies)
    halt = "" if desired.halt is None else _halt_text(desired.halt)
    return "".join(
        (
            _resume_text(desired.resume),
            _persist_text(desired.persist),
            halt,
            _protected_text(desired.protected),
            *copies,
        )
    )


def _halt_text(halt: Halt) -> str:
    return ", halting after the present step" if halt.step is None else f", halting after step {halt.step}"


def _protected_text(steps: tuple[KeptStep, ...] | None) -> str:
    named = ", ".join(f"{at.step} of round {at.round}" for at in steps or ())
    return f", protecting step{'s' if len(steps or ()) > 1 else ''} {named}" if named else ""


def _resume_text(resume: Resume | None) -> str:
    if resume is None:
        return ""
    if resume.disk is not None:
        return f", resuming at step {resume.step} of round {resume.disk.round} of {resume.disk.run} on the disk"
    sources = ", ".join(source.node for source in resume.sources) + ("" if resume.complete else " and others")
    return f", resuming at step {resume.step} of round {resume.round} with parts of {sources}"


def _persist_text(order: PersistOrder | None) -> str:
    if order is None:
        return ""
    ranks = ", ".join(f"{part.first_rank} to {part.first_rank + part.ranks - 1}" for part in order.parts)
    whole = ", and making it whole" if order.commit else ""
    return f", writing step {order.step} of ranks {ranks}{whole}"
