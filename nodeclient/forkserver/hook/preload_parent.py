"""The parent interpreter of `--preload`: imports modules, and then forks a process for each request.

`nodeclient.forkserver.server_process` has the other end of its socket. The parent reports its imports as JSON objects,
one a line. Then it receives requests for forks: a byte each, with a socket. Over that socket the node tells the fork,
at once or much later, which worker it is, and `preload_worker` turns the fork into that worker.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import site
import socket
import sys
import threading
import time
import warnings
from collections.abc import MutableMapping
from typing import Any

from preload_end import Ending, load
from preload_worker import become_worker, decoded

SETTINGS_VARIABLE = "COORDINATORD_PRELOAD"
"""The variable with the settings of this process as JSON:

* `socket`: the descriptor of the socket to the node
* `modules`: what to import; null: only report that Python runs the hook
* `optional`: modules that are imported as well, if they exist
* `hook`: our directory on PYTHONPATH
* `pythonpath`: the value of PYTHONPATH without that directory, or null
* `gloo`, `responder`, `recorder`: the paths of workerlib's `gloo`, `responder` and `recorders`
* `room`: padding, to make room for a worker's environment in /proc

Paths, arguments and variables may be invalid text. They come as bytes, each as one character of Latin-1, because the
node may decode them in another way than the user's interpreter."""

RARELY = 1_000_003
"""The threshold of garbage collections during imports, a number that no module sets. Most objects of modules are no
garbage, and collections would take a sixth of the time of an import of torch."""

DRIVERS = {"/dev/nvidia-uvm": "CUDA", "/dev/kfd": "ROCm"}
"""Devices that a process has open once it has initialised CUDA (cuInit opens it, NVML does not) or ROCm. After that its
forks cannot use a GPU."""

REASON_MAX = 200
"""The limit of an exception's text in characters: one line."""

HOOK_MODULES = ("preload_end", "preload_parent", "preload_worker")
"""The modules beside this one, which the user's program must not find."""

FORKS_WELL = frozenset({"jemalloc_bg_thd"})
"""The kernel's names of native threads that a fork may lose. jemalloc, which comes with pyarrow (and so with pandas and
transformers), is prepared for a fork, and restarts its thread in the child on demand."""

NAMED_WITHIN_S = 0.2
"""How long to wait for the name of a native thread, which has its process's name until it runs."""


class PreloadError(Exception):
    """The modules cannot be preloaded, so that workers have to start cold; the text says why.

    `cause` is a value of `ColdCause` in `coordinatord.protocol.messages`.
    """

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


def serve(before: frozenset[str], path: list[str]) -> bool:
    """Serve requests until the node ends. Return only in a worker: whether the user has a `sitecustomize`.

    `before` are the modules that Python had imported before the hook. `path` is the user's `sys.path`.
    """
    settings = json.loads(os.environ[SETTINGS_VARIABLE])
    link = socket.socket(fileno=settings["socket"])
    link.set_inheritable(False)
    inherited = _inherited()
    for environ in inherited, os.environ:
        _remove_settings(environ, settings["pythonpath"])
    if settings["modules"] is None:  # the node only checks that Python runs the hook
        _send(link, {"ready": 0})
        os._exit(0)
    ending = Ending(decoded(settings["gloo"]))
    responder, recorder = load(decoded(settings["responder"])), load(decoded(settings["recorder"]))
    # From here on the process looks as if Python had found no hook: the user's modules see their own paths and names.
    sys.path[:] = path
    _forget_hook(decoded(settings["hook"]))
    needed = frozenset(sys.modules) - before  # a cold worker has those in `before` too, but not these
    customized = _customize()
    usual = gc.get_threshold()
    gc.set_threshold(RARELY, *usual[1:])
    try:
        _refuse_namesakes([*_path_of_program(), *_entries(settings["pythonpath"])], needed)
        _preload(link, settings["modules"], settings["optional"])
    except PreloadError as error:
        _send(link, {"refused": str(error), "cause": error.cause})
        os._exit(0)
    if gc.get_threshold()[0] == RARELY:  # no module has set a threshold for the workers
        gc.set_threshold(*usual)
    ending.prepare()
    # Each worker would collect the present garbage, and a collection in a fork copies the pages of all objects.
    gc.collect()
    gc.freeze()
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a process that ignores SIGCHLD cannot wait for a child
    _send(link, {"ready": len(sys.modules)})
    while (descriptor := _receive(link)) is not None:
        if _fork(link, descriptor):
            ending.begin()
            become_worker(descriptor, inherited)
            responder.start(recorder)
            if handler is not None:  # a handler that was not installed from Python cannot be restored
                signal.signal(signal.SIGCHLD, handler)
            return customized
    os._exit(0)


def _inherited() -> dict[str, str]:
    """Return the initial environment of the process; `os.environ` may have been changed even before the hook."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib would be one more module
        variables = (variable.partition(b"=") for variable in file.read().split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in variables if name}


def _remove_settings(environ: MutableMapping[str, str], pythonpath: str | None) -> None:
    del environ[SETTINGS_VARIABLE]
    if pythonpath is None:
        del environ["PYTHONPATH"]
    else:
        environ["PYTHONPATH"] = decoded(pythonpath)


def _forget_hook(hook: str) -> None:
    sys.path.remove(hook)
    sys.path_importer_cache.pop(hook, None)
    for name in ("sitecustomize", *HOOK_MODULES):
        sys.modules.pop(name, None)


def _customize() -> bool:
    """Import the user's own `sitecustomize` as Python does; return whether there is one."""
    site.execsitecustomize()
    return "sitecustomize" in sys.modules


# Import


def _preload(link: socket.socket, modules: list[str], optional: list[str]) -> None:
    """Import `modules`, and those of `optional` that exist. Raises `PreloadError`."""
    entries = _path_of_program()
    sys.path[:0] = entries
    for name in [*modules, *optional]:
        _send(link, {"importing": name})
        try:
            importlib.import_module(name)
        except BaseException as error:
            if name in optional and isinstance(error, ImportError):  # another release of the library lacks this module
                continue
            reason = str(error).partition("\n")[0][:REASON_MAX]
            text = f"module {name} cannot be imported: {type(error).__name__}: {reason}"
            raise PreloadError("import", text) from error
        _check(name)
    for entry in entries:
        if entry in sys.path:  # a module may have removed it
            sys.path.remove(entry)
    sys.stdout.flush()
    sys.stderr.flush()


def _path_of_program() -> list[str]:
    """Return the entries of `sys.path` for the program's own modules, which Python adds when it runs the program."""
    main = sys.argv[0]
    named = main not in {"-m", "-c", "-", ""}
    if named and _is_importable(main):
        return [main]
    if getattr(sys.flags, "safe_path", False):
        return []
    if not named:
        return [os.getcwd()]  # noqa: PTH109 - see `_inherited`
    return [os.path.dirname(os.path.realpath(main))]  # noqa: PTH120


def _entries(pythonpath: str | None) -> list[str]:
    """Return the directories of PYTHONPATH without that of the standard library, which hides no module."""
    standard = os.path.dirname(os.__file__)  # noqa: PTH120 - see `_inherited`
    entries = [] if pythonpath is None else decoded(pythonpath).split(os.pathsep)
    return [entry for entry in entries if entry != standard]


def _refuse_namesakes(entries: list[str], needed: frozenset[str]) -> None:
    """Raise `PreloadError` if a user's module has the name of one that this hook `needed`: imports would find that."""
    for directory in entries:
        for name in needed:
            path = os.path.join(directory, name)  # noqa: PTH118 - see `_inherited`
            if os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__init__.py"):  # noqa: PTH113
                text = f"{path} hides a module of Python's that --preload needs: give it another name"
                raise PreloadError("import", text)


def _is_importable(path: str) -> bool:
    """Return whether a path is a directory or an archive, so that Python runs the `__main__` in it."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _check(name: str) -> None:
    """Raise `PreloadError` if the module makes a fork of this process differ from a new process."""
    if _has_children():
        raise PreloadError("process", f"module {name} starts a process, which would not end with the workers")
    started = _threads_lost()
    if started:
        raise PreloadError("process", f"module {name} starts a thread ({', '.join(started)}), which forks lose")
    opened = [path for path in map(_target, os.listdir("/proc/self/fd")) if path in DRIVERS]  # noqa: PTH208
    if opened:
        what = f"{DRIVERS[opened[0]]} ({opened[0]} is open)"
        raise PreloadError("gpu", f"module {name} opened {what}, which forked workers cannot use")


def _threads_lost() -> list[str]:
    """Return the names of the threads that a fork would lack.

    OpenBLAS ends its threads before a fork and restarts them on demand. So this process forks once, and then lists the
    threads that it still has. OpenMP does not do that: the next parallel operation in a fork would wait for its threads
    for ever.
    """
    names_in_python = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    if len(_tasks()) > 1:
        child = _quiet_fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    names = [names_in_python.get(task) or _name_of(task) for task in sorted(_tasks() - {str(os.getpid())})]
    return [name for name in names if name and name not in FORKS_WELL]


def _tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))  # noqa: PTH208 - see `_inherited`


def _name_of(task: str) -> str:
    """Return the kernel's name of a thread, or "without a name" if it gets none in time; empty if it has ended."""
    until = time.monotonic() + NAMED_WITHIN_S
    try:
        while (name := _comm(task)) == _comm(str(os.getpid())):
            if time.monotonic() > until:
                return "without a name"
            time.sleep(0.001)  # noqa: TID251 - no event tells that a thread has got its name
    except OSError:
        return ""
    return name


def _comm(task: str) -> str:
    with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return file.read().rstrip("\n")


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _quiet_fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns about threads; this module checks for them itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:  # the descriptor of the listing itself
        return ""


# Serve


def _fork(link: socket.socket, descriptor: int) -> bool:
    """Fork a worker, which gets a socket to the node; return whether this process is the worker.

    An intermediate process forks it and ends at once. Then the kernel makes the worker a child of the node, which is a
    subreaper and so gets its exit code. The parent writes to the socket when that is done, or if it has failed.
    """
    try:
        between = _quiet_fork()
    except OSError as error:
        _answer(descriptor, f"no process can be forked: {error.strerror}")
        return False
    if between == 0:
        try:
            if _quiet_fork():
                os._exit(0)
        except OSError:
            os._exit(1)
        link.close()
        return True
    forked = os.waitpid(between, 0)[1] == 0
    _answer(descriptor, "forked" if forked else "no second process can be forked")
    return False


def _answer(descriptor: int, line: str) -> None:
    """Write a line to the node, and close the socket; the node may have given up on the worker."""
    try:
        os.write(descriptor, line.encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _receive(link: socket.socket) -> int | None:
    """Wait for a request; return its descriptor, or None if the node has ended.

    A request arrives without its descriptor if this process may open no more files. The node sees that it was closed.
    """
    while True:
        request, descriptors, _, _ = socket.recv_fds(link, 1, 1)
        if descriptors or not request:
            return descriptors[0] if descriptors else None


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")
