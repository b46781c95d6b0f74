"""What a worker says of itself becomes short frames, and nothing that it may say breaks the node."""

import json
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.arrival_messages import AGE_US_MAX, ARRIVALS_MAX, GROUPS_MAX, unpack_ages
from coordinatord.protocol.stack_messages import Collective, CollectiveState
from nodeclient.diagnosis.stack_text import (
    MalformedAnswerError,
    WorkerAnswer,
    read_answer,
    read_arrivals,
    read_dump,
    read_hello,
)

DUMP = """Thread 0x00007f0e3a7fc640 (most recent call first):
  File "/repo/workerlib/responder.py", line 90 in _serve

Thread 0x00007f0e3b7fe640 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait

Current thread 0x00007f0e4c6d2740 (most recent call first):
  File "/env/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1775 in _call_impl
  File "/home/me/train.py", line 41 in <module>
"""


def an_answer(**changes: Any) -> bytes:
    threads = [{"name": "MainThread", "frames": [["/home/me/train.py", 41, "main"]]}]
    return json.dumps({"threads": threads, "collectives": [], **changes}).encode()


def collective(group: str, number: int, state: str) -> dict[str, Any]:
    return {
        "group": group,
        "number": str(number),
        "state": state,
        "operation": "gloo:all_reduce",
        "sizes": [[8, 3], []],
        "types": ["Float", "Int"],
        "age_s": 12.04,
    }


def test_paths_are_given_from_the_users_folder_and_from_that_of_a_library() -> None:
    places = [
        ("/env/lib/python3.12/site-packages/torch/_ops.py", 7, "call"),
        ("/usr/lib/python3.12/queue.py", 171, "get"),
        ("<frozen importlib._bootstrap>", 1, "_find_and_load"),
        ("/home/me/train.py", 41, "main"),
        ("/elsewhere/x.py", 2, "f"),
    ]
    answer = an_answer(threads=[{"name": "MainThread", "frames": places}])
    [(name, frames)] = read_answer(answer, "/home/me").threads
    assert name == "MainThread"
    assert frames == ("call (torch/_ops.py:7)", "get (queue.py:171)", "main (train.py:41)", "f (/elsewhere/x.py:2)")


@pytest.mark.parametrize(
    ("held", "file", "function"),
    [
        (True, "/usr/lib/python3.12/bdb.py", "Bdb.trace_dispatch"),
        (True, "/usr/lib/python3.10/bdb.py", "dispatch_line"),
        (True, "/usr/lib/python3.12/pdb.py", "Pdb.interaction"),
        (True, "/usr/lib/python3.12/code.py", "InteractiveConsole.interact"),
        (True, "/env/lib/python3.12/site-packages/IPython/terminal/interactiveshell.py", "TerminalShell.interact"),
        (True, "/env/lib/python3.12/site-packages/debugpy/_vendored/pydevd/pydevd.py", "PyDB._do_wait_suspend"),
        (True, "/opt/pycharm/plugins/python/helpers/pydev/pydevd.py", "PyDB.do_wait_suspend"),
        (True, "/home/me/.vscode-server/libs/debugpy/_vendored/pydevd/pydevd.py", "_wait_for_attach"),
        (True, "/env/lib/python3.12/site-packages/remote_pdb.py", "RemotePdb.__init__"),
        (False, "/usr/lib/python3.12/bdb.py", "Bdb.run"),
        (False, "/usr/lib/python3.12/pdb.py", "main"),
        (False, "/env/lib/python3.12/site-packages/debugpy/_vendored/pydevd/pydevd.py", "PyDB.run"),
        (False, "/home/me/pdb.py", "interaction"),
    ],
)
def test_who_stands_in_a_debugger_is_held_by_it(held: bool, file: str, function: str) -> None:
    frames = [["/usr/lib/python3.12/socket.py", 7, "recv"], [file, 8, function], ["/home/me/train.py", 41, "main"]]
    waits = {"name": "MainThread", "frames": [["/usr/lib/python3.12/threading.py", 359, "wait"]]}
    answer = an_answer(threads=[waits, {"name": "helper", "frames": frames}])
    assert read_answer(answer, "/home/me").is_debugged is held
    dump = "\n".join(f'  File "{place}", line {line} in {name}' for place, line, name in frames)
    assert read_dump(f"Thread 0x1 (most recent call first):\n{dump}", "/home/me").is_debugged is held


def test_of_several_groups_the_one_that_is_waited_in_counts_with_the_number_of_its_ranks() -> None:
    both = [{**collective("default_pg", 9, "done"), "members": 16}, {**collective("dp 2", 4, "waits"), "members": 2}]
    found = read_answer(an_answer(collectives=both, network_bytes=123), "/")
    assert found.collective == Collective("dp 2", 4, CollectiveState.WAITS, "gloo:all_reduce", "8x3 Float, 1 Int", 12.0)
    assert (found.members, found.network_bytes) == (2, 123)
    older = read_answer(an_answer(collectives=[collective("default_pg", 9, "done")]), "/")
    assert older.collective is not None
    assert (older.collective.group, older.collective.number, older.collective.state) == (
        "default_pg",
        9,
        CollectiveState.DONE,
    )
    assert (older.members, older.network_bytes) == (0, 0)


def test_the_places_of_a_worker_are_others_when_it_gets_on_in_any_group() -> None:
    def places(*collectives: dict[str, Any]) -> tuple[Collective | None, bytes]:
        found = read_answer(an_answer(collectives=collectives), "/")
        return found.collective and replace(found.collective, age_s=0.0), found.places

    control, gradients = collective("control 1", 1, "waits"), collective("default_pg", 50, "done")
    known = places(control, gradients)
    assert known == places(gradients, {**control, "age_s": 13.0})
    others = [{**gradients, "number": 57}, {**gradients, "state": "waits"}, {**gradients, "group": "dp 1"}]
    assert len({known, places(), *(places(control, other) for other in others)}) == 5
    assert places() == (None, b"")


def test_of_a_worker_that_gets_on_only_a_number_is_known() -> None:
    moves = {"group": "0", "number": "9", "state": "moves"}
    assert read_answer(an_answer(collectives=[moves]), "/").collective == Collective("0", 9, CollectiveState.MOVES)


def test_a_dump_of_faulthandler_begins_with_the_main_thread_and_lacks_our_own() -> None:
    found = read_dump(DUMP, "/home/me")
    assert found.threads == (
        ("MainThread", ("_call_impl (torch/nn/modules/module.py:1775)", "<module> (train.py:41)")),
        ("thread", ("wait (threading.py:359)",)),
    )
    assert found.stands_at == "_call_impl (train.py:41)"
    assert read_dump("what a library has written to the pipe", "/") == WorkerAnswer()


def test_our_own_threads_are_shown_only_while_they_do_something() -> None:
    script = [["/home/me/train.py", 41, "main"]]
    keep = "/env/lib/python3.12/site-packages/workerlib/keeping"
    waits = [
        ["/usr/lib/python3.12/socket.py", 573, "recv_fds"],
        ["/env/lib/python3.12/site-packages/workerlib/agent_channel.py", 36, "receive"],
    ]
    saves = [[f"{keep}/saving.py", 9, "save"], [f"{keep}/planned_end.py", 120, "PlannedEnd._receive_all"]]
    theirs = [["/usr/lib/python3.12/socket.py", 573, "recv_fds"], ["/home/me/workerlib.py", 1, "receive"]]
    threads = [
        {"name": name, "frames": frames} for name, frames in zip("mwst", (script, waits, saves, theirs), strict=True)
    ]
    assert [name for name, _ in read_answer(an_answer(threads=threads), "/home/me").threads] == ["m", "s", "t"]
    assert [name for name, _ in read_answer(an_answer(threads=threads[1:2]), "/home/me").threads] == ["w"]
    blocks = [
        "\n".join(["Thread 0x1f (most recent call first):", *(f'  File "{p}", line {n} in {f}' for p, n, f in frames)])
        for frames in (waits, theirs, script)
    ]
    shown = read_dump("\n\n".join(blocks), "/home/me").threads
    assert [frames[-1] for _, frames in shown] == ["main (train.py:41)", "receive (workerlib.py:1)"]


def test_where_the_script_stands_is_told_by_the_whole_stack() -> None:
    library = [("/home/me/.venv/lib/python3.12/site-packages/torch/nn/module.py", at, f"call_{at}") for at in range(90)]
    script = [
        ("/home/me/models/net.py", 5, "Net.train_step"),
        ("/home/me/train.py", 41, "train"),
        ("/home/me/train.py", 50, "main"),
        ("/home/me/train.py", 60, "<module>"),
    ]
    answer = read_answer(an_answer(threads=[{"name": "MainThread", "frames": library + script}]), "/home/me")
    assert answer.stands_at == "call_89 (models/net.py:5)"
    elsewhere = read_answer(an_answer(threads=[{"name": "MainThread", "frames": library + script}]), "/elsewhere")
    assert elsewhere.stands_at == "call_89 (/home/me/models/net.py:5)"
    assert read_answer(an_answer(threads=[]), "/").stands_at == ""


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        an_answer(threads=[{}]),
        an_answer(collectives=[{"group": 1}]),
        an_answer(collectives=[{**collective("default_pg", 9, "waits"), "age_s": 10**400}]),
        an_answer(threads=7),
        an_answer(network_bytes="many"),
    ],
)
def test_what_is_no_answer_is_refused(packet: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        read_answer(packet, "/")


@pytest.mark.parametrize(
    "packet",
    [b"", b"\xff", b"[]", b"{}", b'{"local_rank":1e999,"signal":1}', b'{"local_rank":0,"signal":NaN}', b"[" * 60_000],
)
@pytest.mark.usefixtures("collects_nothing")
def test_a_hello_is_two_numbers_or_refused(packet: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        read_hello(packet)
    assert read_hello(b'{"local_rank": 1, "signal": 61}') == (1, 61)


NOW_S = 1.7e9


def arrivals_sent(*ages_s: float, group: str = "default_pg", first: int = 7) -> dict[str, Any]:
    return {"group": group, "first": first, "times_ns": [round((NOW_S - age_s) * 1e9) for age_s in ages_s]}


def arrivals(*groups: Any) -> bytes:
    return json.dumps({"arrivals": groups}).encode()


OLD_S = AGE_US_MAX / 1e6 + 1
"""An age that no message can hold."""


@pytest.mark.parametrize(
    ("sent", "first", "ages"),
    [
        ([3.0, 2.5, 0.25], 7, [3.0, 2.5, 0.25]),
        ([OLD_S + 1, OLD_S, 2.0, 1.0], 9, [2.0, 1.0]),
        ([0.5, -0.5], 7, [0.5, 0.0]),
    ],
    ids=["ages", "too old", "after the present"],
)
def test_arrivals_are_given_as_ages_that_a_message_can_hold(sent: list[float], first: int, ages: list[float]) -> None:
    [found] = read_arrivals(arrivals(arrivals_sent(*sent), arrivals_sent(OLD_S)), NOW_S)
    assert (found.group, found.first) == ("default_pg", first)
    assert unpack_ages(found.ages) == pytest.approx(ages, abs=1e-5)


def test_of_too_many_arrivals_and_groups_the_last_and_the_first_are_told() -> None:
    found = read_arrivals(arrivals(*[arrivals_sent(*[1.0] * (ARRIVALS_MAX + 3))] * (GROUPS_MAX + 1)), NOW_S)
    assert len(found) == GROUPS_MAX
    assert len(unpack_ages(found[0].ages)) == ARRIVALS_MAX
    assert found[0].first == 10


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"[",
        b"[]",
        b"7",
        b"{}",
        b'{"arrivals": 7}',
        b'{"arrivals": [7]}',
        b'{"arrivals": [{}]}',
        arrivals({"group": "g", "first": "x", "times_ns": [1]}),
        arrivals({"group": "g", "first": 1, "times_ns": ["x"]}),
        arrivals({"group": "g", "first": 1, "times_ns": [[]]}),
        arrivals({"group": "g", "first": 1, "times_ns": {}}),
        b'{"arrivals": [{"group": "g", "first": 1, "times_ns": [NaN]}]}',
        b'{"arrivals": [{"group": "g", "first": 1, "times_ns": [Infinity, -Infinity]}]}',
        b"[" * 100_000,
    ],
)
@pytest.mark.usefixtures("collects_nothing")
def test_strange_arrivals_are_refused_or_empty(packet: bytes) -> None:
    with suppress(MalformedAnswerError):
        assert all(unpack_ages(group.ages) for group in read_arrivals(packet, NOW_S))
