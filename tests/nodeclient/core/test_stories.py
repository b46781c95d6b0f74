"""What a node does in each situation, as stories that a person can read; `--rewrite` writes them anew.

Its agent is on the bench, and `tests/golden/node` has the scripts with what it does at each line. A story begins with
`node`, with how far the node is (`running`; `elastic` if its workers can stay, too; `held` if they are out of round 1),
and with settings. Each other line is a goal of the coordinator, a call of the bench, or an event.
"""

import shlex
from ast import literal_eval
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.kept_state import Halt, KeptStep, Resume
from coordinatord.protocol.messages import Assignment, ColdCause, Goal, Outcome, RefusalCode, Result, WhyCold
from coordinatord.protocol.pair_messages import PairOrder
from nodeclient.core import events
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import (
    Effect,
    Exit,
    Kill,
    Notice,
    Probe,
    Restore,
    RunPairTest,
    SendObserved,
    Show,
    Start,
    Sweep,
    Terminate,
    Waiting,
)
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import LOST_PEER, a_report, an_assignment
from tests.support.golden import FOLDER, compare, transcribe

STORIES = sorted((FOLDER / "node").glob("*.txt"))

SHOWN = ("run", "round", "phase", "leaving", "killed", "pids", "held_up")
"""Fields of a node's report that are written when they change, beside those that take words of their own."""

RESUME = Resume(1, 7, 2, 1, (), complete=True)


class Story:
    """A node on its bench, and what of its report was written last."""

    def __init__(self) -> None:
        self._bench = Bench()
        self._shown = _shown(self._bench)

    def play(self, line: str) -> list[str]:
        """Do what a line says; return what the node does and reports then, in one line if that is anything."""
        name, *words = shlex.split(line)
        values = {key: _value(text) for key, is_option, text in (word.partition("=") for word in words) if is_option}
        arguments = [_value(word) for word in words if "=" not in word]
        if name == "node":
            self._bench = _begin(*arguments, values)
            self._shown = _shown(self._bench)
            return []
        before = len(self._bench.effects)
        _do(self._bench, name, arguments, values)
        shown = _shown(self._bench)
        changes = [f"{key}={value}" for key, value in shown.items() if value != self._shown[key]]
        self._shown = shown
        runs = [(text, len([*equal])) for text, equal in groupby(map(_effect_text, self._bench.effects[before:]))]
        outcome = "; ".join([*(text if count == 1 else f"{count} times {text}" for text, count in runs), *changes])
        return [f"    {outcome}"] if outcome else []


def _begin(*states_and_values: Any) -> Bench:
    *states, values = states_and_values
    settings = {name: values.pop(name) for name in list(values) if name in Settings.__struct_fields__}
    bench = Bench(replace(SETTINGS, **settings))
    if states:
        bench.running(**_desired(values))
    if states in (["elastic"], ["held"]):
        bench.stays(*range(bench.settings.workers))
    if states == ["held"]:
        bench.receive(Goal.STOP)
        for local_rank in range(bench.settings.workers):
            bench.left(local_rank)
        bench.swept()
    return bench


def _do(bench: Bench, name: str, arguments: list[Any], values: dict[str, Any]) -> None:
    if name in list(Goal):
        bench.receive(Goal(name), **_desired(values))
    elif name[0].isupper():
        bench.submit(getattr(events, name)(*arguments, **values))
    elif name == "refused":
        bench.refused(RefusalCode(arguments[0]), *arguments[1:], **values)
    elif name == "masters":
        bench.reaches = arguments == ["answer"]
    else:
        getattr(bench, name)(*arguments, **_desired(values))


def _value(text: str) -> Any:
    if text == "LOST_PEER":
        return LOST_PEER
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _desired(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a desired state, for which options stand: those of a part, a step, a result and so on."""
    found = {name: value for name, value in values.items() if name not in Assignment.__struct_fields__}
    if part := {name: value for name, value in values.items() if name in Assignment.__struct_fields__}:
        found["assignment"] = an_assignment(**part)
    if "halt" in found:
        found["halt"] = Halt(found["halt"])
    if "resume" in found:
        found["resume"] = replace(RESUME, step=found["resume"], complete=found.pop("complete", True))
    if found.get("protected"):
        found["protected"] = (KeptStep(1, found["protected"]),)
    if "why_cold" in found:
        found["why_cold"] = WhyCold(ColdCause.GPU, found["why_cold"])
    if "result" in found:
        found["outcome"] = Outcome(Result(found.pop("result")), found.pop("code"), found.pop("message"))
    if "pair" in found:
        found["pair"] = found["pair"] and PairOrder(found["pair"], 0, "n2", "10.0.0.1", 29501, 10.0)
    if "report" in found:
        found["report"] = a_report(round=found["report"])
    return found


def _shown(bench: Bench) -> dict[str, object]:
    observed = bench.observed
    failure, begun = observed.failure, observed.begun
    shown = {name: getattr(observed, name) for name in SHOWN}
    shown["ended"] = [ended.rank for ended in observed.ended]
    shown["awaits_own"] = bench.agent.awaits_own(bench.now)
    shown["pair"] = observed.pair and observed.pair.number
    shown["begun"] = shown["failure"] = None
    if begun is not None:
        why = begun.why_not or begun.why_cold
        shown["begun"] = f"{begun.in_place} in place, {begun.warm} warm, {begun.cold} cold{f': {why}' if why else ''}"
    if failure is not None:
        left = ", and leaves" if failure.left else ""
        followers = "".join(f", then rank {each.rank} with {each.exit_code}" for each in failure.followers)
        cause = str(failure.error or failure.message)
        shown["failure"] = (
            f"rank {failure.rank} with {failure.exit_code}{f' ({cause})' if cause else ''}{left}{followers}"
        )
    return shown


def _waits(waiting: Waiting) -> str:
    bound = "" if waiting.until is None else f", until {waiting.until:g}"
    return f"{waiting.level}: waits{' with workers' if waiting.working else ''}{bound}: {waiting.reason}"


def _starts(start: Start) -> str:
    stays = f" with {', '.join(map(str, start.reused))}" if start.reused else ""
    return f"Start round {start.round} of {start.run}{stays}"


def _restores(order: Restore) -> str:
    resume = order.resume
    known = "" if resume is None or resume.complete else ", of which not all holders are known"
    source = "nothing" if resume is None else f"step {resume.step}"
    return f"Restore {order.run} round {order.round} from {source}{known}"


TEXTS: dict[type[Any], Callable[[Any], str]] = {
    Exit: lambda end: f"Exit {end.code}, {end.level}{' with the report' if end.report else ''}: {end.message}",
    Kill: lambda _: "Kill",
    Notice: lambda notice: f"{notice.level}: {notice.text}",
    RunPairTest: lambda test: "End the test" if test.order is None else f"Run test {test.order.number}",
    Probe: lambda probe: f"Probe round {probe.round}{' and give way' if probe.delays_start else ''}",
    Restore: _restores,
    SendObserved: lambda sent: "heartbeat" if sent.observed.beat else "report",
    Show: lambda _: "Show",
    Start: _starts,
    Sweep: lambda sweep: "Sweep" if sweep.checks_gpus else "Sweep without a look at GPUs",
    Terminate: lambda order: f"Terminate by {Signals(order.signum).name}",
    Waiting: _waits,
}
"""The effects that take words of their own."""


def _effect_text(effect: Effect) -> str:
    return TEXTS.get(type(effect), repr)(effect)


@pytest.mark.parametrize("script", STORIES, ids=lambda script: script.stem)
def test_a_node_acts_as_its_stories_say(script: Path, *, rewrite: bool) -> None:
    compare(script, transcribe(script.read_text(), Story()), rewrite=rewrite)
