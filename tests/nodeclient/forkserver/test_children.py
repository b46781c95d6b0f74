"""The children of a worker - processes in each of Python's ways, threads, loops - find the same cold and warm."""

import pytest

from tests.nodeclient.forkserver.support import Stage, assert_same, python

pytestmark = pytest.mark.slow

PARENT = r'''"""Starts children in all ways, as data loaders do."""
import asyncio, concurrent.futures, json, multiprocessing, os, signal, subprocess, sys, threading, time
from multiprocessing import shared_memory
import report

started_at = time.monotonic()

class Sample:
    """Of the main module, so that a child must find that to unpickle it."""
    def __init__(self, number): self.number = number
    def __eq__(self, other): return self.number == other.number

def square(sample): return Sample(sample.number ** 2)

def view(wanted):
    import describe
    main = sys.modules["__main__"]
    return {
        "main": [main.__name__, main.__file__, sorted(vars(main))],
        "sys": [sys.argv, sys.path, list(sys.flags), sys.executable, sys.orig_argv[-1] if wanted == "fork" else ""],
        "environ": describe.environ(),
        "process": [multiprocessing.current_process().name, multiprocessing.parent_process().name],
        "parent": wanted == "forkserver" or os.getppid() == multiprocessing.parent_process().pid,
        "group": wanted == "forkserver" or os.getpgrp() == multiprocessing.parent_process().pid,
        "thread": [threading.current_thread() is threading.main_thread(), threading.active_count()],
        "files": len(describe.files()),
        "signals": [repr(signal.getsignal(signum)) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    }

def work(queue, pipe, wanted):
    queue.put(view(wanted))
    pipe.send_bytes(bytes(multiprocessing.current_process().authkey))
    pipe.close()
    if wanted == "fork":
        print("said by a forked child", flush=True)
    sys.exit(17)

def with_(method):
    context = multiprocessing.get_context(method)
    queue, (reading, writing) = context.Queue(), context.Pipe(duplex=False)
    child = context.Process(target=work, args=[queue, writing, method], name="loader")
    child.start()
    writing.close()
    found = queue.get()
    assert reading.recv_bytes() == bytes(multiprocessing.current_process().authkey)
    child.join()
    with context.Pool(1) as pool:
        assert pool.map(square, [Sample(3)]) == [Sample(9)]
        try:
            pool.apply(int, ["no number"])
        except ValueError as error:
            found["error"] = [str(error), type(error.__cause__).__name__, str(error.__cause__)]
    return {**found, "code": child.exitcode}

async def in_a_loop():
    child = await asyncio.create_subprocess_exec(*COMMAND, stdout=subprocess.PIPE)
    said, _ = await child.communicate()
    alarm = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, alarm.set_result, "heard")
    os.kill(os.getpid(), signal.SIGUSR1)
    return [json.loads(said), await alarm, await asyncio.to_thread(lambda: threading.current_thread().name)]

PROGRAM = """
import json, os, sys, describe
print(json.dumps([sys.argv, sys.path, sorted(sys.modules), describe.environ(), os.getcwd(), describe.files()]))
"""
COMMAND = [sys.executable, "-c", PROGRAM, "x"]

def by_fork():
    child = os.fork()
    if child == 0:
        os._exit(5 if os.getppid() == os.getpgrp() and multiprocessing.active_children() == [] else 6)
    return os.waitpid(child, 0)[1]

def in_shared_memory():
    block = shared_memory.SharedMemory(create=True, size=8)
    block.buf[:2] = b"ok"
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        found = pool.submit(look, block.name).result()
    block.close()
    block.unlink()
    return found

def look(name):
    block = shared_memory.SharedMemory(name)
    found = bytes(block.buf[:2]).decode()
    block.close()
    return found

def in_a_manager():
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        child = multiprocessing.Process(target=shared.update, args=[{"b": 2}])
        child.start()
        child.join()
        return dict(shared)

def in_threads():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        names = list(pool.map(lambda _: threading.current_thread().name, range(2)))
    return [names[0], threading.local().__dict__, threading.main_thread() is threading.current_thread()]

if __name__ == "__main__":
    report.report(
        default=multiprocessing.get_start_method(allow_none=True),
        fork=with_("fork"), spawn=with_("spawn"), forkserver=with_("forkserver"),
        program=json.loads(subprocess.run(COMMAND, stdout=subprocess.PIPE).stdout),
        shell=os.popen("echo $RANK $0; ulimit -n; umask").read(),
        asyncio=asyncio.run(in_a_loop()), forked=by_fork(), threads=in_threads(),
        memory=in_shared_memory(), manager=in_a_manager(),
        left=[multiprocessing.active_children() == [], threading.active_count()],
    )
'''

PRELOAD = "multiprocessing.pool,concurrent.futures.process,asyncio,subprocess"


@pytest.mark.long
def test_children_find_the_same(stage: Stage) -> None:
    assert_same(*stage.both(*python(stage.write("train.py", PARENT), "--workers", "3"), preload=PRELOAD))
