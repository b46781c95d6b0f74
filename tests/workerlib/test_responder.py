"""What a worker answers beside where it is in its collectives, and how much of that fits a packet."""

import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.flight_recorder import Recorder, entry, install
from workerlib import responder
from workerlib.contract import recorders


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the responder read flight recorders, as in a worker that nodeclient has started."""
    monkeypatch.setattr(responder, "_recorders", recorders)


class Raced(dict[str, str]):
    """An environment from which another thread takes a variable between the look at it and its removal."""

    def pop(self, name: str, *_: object) -> str:
        """Fail as `os.environ` does then."""
        raise KeyError(name)


def test_two_threads_may_make_the_first_call_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", Raced({responder.STACKS: "/run/node"}))
    responder.begin()


def high_descriptors() -> set[str]:
    """Return the open descriptors of this process among the numbers that the responder takes."""
    return {each.name for each in Path("/proc/self/fd").iterdir() if int(each.name) >= responder.DESCRIPTOR_MIN}


def test_a_start_that_fails_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as node:
        node.bind(str(tmp_path / "node"))
        node.listen()
        monkeypatch.setenv(responder.STACKS, str(tmp_path / "node"))
        monkeypatch.delenv("COORDINATORD_WORKER", raising=False)
        before = high_descriptors()
        responder.start(recorders)
        assert high_descriptors() == before


def test_bytes_that_come_and_go_on_connections_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = responder._network_bytes()
            sender.sendall(bytes(10_000))
            while len(receiver.recv(10_000, socket.MSG_PEEK)) < 10_000:  # it has come, and is not read
                pass
            assert responder._network_bytes() - before >= 10_000


def test_of_connections_only_a_worker_tells_that_does_not_get_on(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, gloo=Recorder([entry("gloo:barrier", 7, retired=False)]))
    assert "network_bytes" in json.loads(responder._answer())
    install(monkeypatch, gloo=Recorder([entry("gloo:barrier", 7, retired=False)], gets_on=True))
    assert "network_bytes" not in json.loads(responder._answer())


def test_a_worker_of_many_deep_threads_tells_of_its_collective_and_its_main_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, gloo=Recorder([entry("gloo:all_reduce", 9, retired=False)]))
    over, ready = threading.Event(), threading.Semaphore(0)

    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        else:
            ready.release()
            over.wait()

    threads = [threading.Thread(target=descend, args=(responder.FRAMES_MAX,)) for _ in range(responder.THREADS_MAX)]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    with ThreadPoolExecutor(1) as pool:
        packet = pool.submit(responder._answer).result()
    over.set()
    for thread in threads:
        thread.join()
    answer = json.loads(packet)
    assert len(packet) <= responder.PACKET_BYTES
    assert [collective["number"] for collective in answer["collectives"]] == [9]
    assert 1 <= len(answer["threads"]) < responder.THREADS_MAX
    assert answer["threads"][0]["name"] == "MainThread"
