"""The tables of known causes in memory, disks and other limits of a host, and in signals. Pure.

The first row that matches counts, so a row stands before those that would match more failures; `match.RULES` has the
order of the tables. Some patterns match texts of nodeclient itself, about the OOM killer
(`nodeclient/diagnosis/diagnose`) and about starts of workers.
"""

from __future__ import annotations

from functools import partial
from signal import Signals

from coordinatord.hints.rule import HintRule
from coordinatord.protocol.messages import Cause

_host_memory = partial(HintRule, Cause.HOST_MEMORY)
_gpu_memory = partial(HintRule, Cause.GPU_MEMORY)
_signal = partial(HintRule, Cause.SIGNAL)
_disk = partial(HintRule, Cause.DISK)
_unknown = partial(HintRule, Cause.UNKNOWN)  # advice is known, but the host and the script may both be at fault

_KILL = frozenset({Signals.SIGKILL})

_LESS_MEMORY = (
    "have it use less (a smaller batch, fewer DataLoader workers, no data held in every worker), or raise the limit "
    "(docker --memory, resources.limits.memory in Kubernetes, --mem in Slurm)"
)

_KILLER = (
    "a person, a scheduler or container runtime that enforces a limit, a daemon such as systemd-oomd or earlyoom, or "
    "the script itself did it, and not nodeclient: see `journalctl` on {host}"
)

MEMORY = (
    HintRule(
        Cause.USER_CODE,
        "more than all memory",
        "that can never be had there: look for a wrong size in the script, such as a unit, bytes taken for elements or "
        "a shape with a factor too many, or use a smaller batch",
        r"it asked for .* at once, and the (?:host|GPU) has .* in all",
    ),
    _host_memory(
        "OOM killer",
        f"the memory was full: {_LESS_MEMORY}",
        r"killed by the kernel's OOM killer \(",
        signals=_KILL,
    ),
    _host_memory(
        "OOM killer took a child",
        f"the memory was full, and a process of the DataLoader was the victim: {_LESS_MEMORY}",
        (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)"
            r"(?s:.*)the kernel's OOM killer ended a process"
        ),
        anywhere=True,
    ),
    _gpu_memory(
        "GPU memory with another process",
        "the GPU is full, and process {other} holds {size} of it (`nvidia-smi` on {host}): end it if it is a leftover; "
        "otherwise use a smaller batch, or let each worker use its own GPU (LOCAL_RANK)",
        (
            # torch knows itself in the list by its pid. In a container it may not, and `Process N` may be this worker.
            r"CUDA out of memory(?=.*this process has).*"
            r" Process (?P<other>\d+) has (?P<size>[\d.]+ [KMGT]iB) memory in use"
        ),
    ),
    _gpu_memory(
        "GPU memory",
        "the GPU is full: use a smaller batch (and accumulate gradients), activation checkpointing or sharding (FSDP); "
        "`nvidia-smi` on {host} shows whether another process holds memory",
        r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError: (?:HIP|XPU)|CUBLAS_STATUS_ALLOC_FAILED",
    ),
    _host_memory(
        "shared memory",
        "the shared memory of {host} (/dev/shm) is too small for DataLoader workers: start the container with "
        "--shm-size=16g or --ipc=host (Kubernetes: an emptyDir with medium: Memory at /dev/shm), or use fewer of them",
        (
            r"insufficient shared memory|out of shared memory|is killed by signal: Bus error"
            r"|No space left on device: '/dev/shm|unable to (?:write to|allocate shared memory).*(?:torch_|/dev/shm)"
        ),
        anywhere=True,
    ),
    _host_memory(
        "host memory",
        f"the host {{host}}, or what it lets one process use (ulimit -v), has no more memory: {_LESS_MEMORY}",
        (
            r"(?m:^)(?:\w+\.)*MemoryError\b|_ArrayMemoryError: |DefaultCPUAllocator: (?:can't|not enough)"
            r"|Cannot allocate memory|std::bad_alloc"
        ),
    ),
    _signal(
        "DataLoader worker killed, not by the OOM killer",
        _KILLER,
        r"some process killed the DataLoader's worker",
    ),
    _signal(
        "DataLoader worker killed",
        "most often the memory was full and the kernel's OOM killer chose it (`dmesg | grep -i killed` on {host}): "
        f"{_LESS_MEMORY}",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",
        anywhere=True,
    ),
    _unknown(
        "DataLoader worker crashed",
        "native code crashed in a process of the DataLoader: most often a library that reads or decodes data, or that "
        "was used before the fork; PYTHONFAULTHANDLER=1 or num_workers=0 shows where",
        (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: "
            r"(?:Segmentation fault|Aborted|Illegal instruction|Floating point exception)"
        ),
    ),
)

LIMITS = (
    _disk(
        "disk full",
        "a file system of {host} is full (`df -h`): checkpoints and logs fill it most often",
        r"No space left on device|Disk quota exceeded",
    ),
    _disk(
        "file not written",
        "a file could not be written whole: most often a file system of {host} is full (`df -h`)",
        r"inline_container.*unexpected pos|PytorchStreamWriter failed writing|OSError: \d+ requested and \d+ written",
    ),
    _disk(
        "file system fails",
        "a disk of {host} fails, or a network file system was away: `dmesg` there says more. If it is back, the next "
        "round may find it; a stale mount has to be mounted again",
        # With the quote that begins a path: the same error of a socket or a terminal names no path.
        r"(?:Input/output error|Transport endpoint is not connected): b?'|Stale file handle",
    ),
    _unknown(
        "disk or terminal fails",
        "a disk of {host} fails (`dmesg` there says more), or the script uses a terminal that is gone, as after a lost "
        "ssh connection",
        r"Input/output error",
    ),
    _unknown(
        "too many open files on the host",
        "all programs of {host} together have as many files open as its kernel allows: `lsof` shows who has them, and "
        "fs.file-max (sysctl) is the limit",
        r"Too many open files in system",
    ),
    _unknown(
        "too many open files",
        "raise the limit before nodeclient starts (ulimit -n 65536; LimitNOFILE= in systemd); DataLoader workers need "
        "fewer with torch.multiprocessing.set_sharing_strategy('file_system')",
        r"Too many open files|received 0 items of ancdata",
    ),
    _unknown(
        "too many processes",
        "{host} lets no more processes or threads be started (ulimit -u, pids.max of the cgroup): use fewer DataLoader "
        "workers, and set OMP_NUM_THREADS",
        (
            r"can't start new thread|(?:fork: .*|cannot be started: |system_error.*)Resource temporarily unavailable"
            r"|pthread_create failed|libgomp: Thread creation failed"
        ),
    ),
)

_LEFT_OPEN = "terminate called without an active exception"
"""The text that C++ writes if threads of a process group still run when the script ends. If an exception of Python has
ended the script, that is the cause, and this text gets no hint."""

_OF_A_GPU = r"(?s:.*)(?:CUDA|NCCL|cuDNN|CUDNN|CUBLAS|HIP|GPU)"
_NO_PROGRAM_ERROR = rf"\A(?!(?s:.*)(?:{_LEFT_OPEN}|terminate called after throwing (?!{_OF_A_GPU})))"
"""Matches a text in which C++ does not say that threads were left open or an exception was thrown: that is an error of
the program, as an exception of Python is. If the exception names a GPU's library, the text matches all the same, since
the GPU may be the cause."""

_PYTHON_STACK = r'Fatal Python error: (?s:.*)\n  File "[^"]+", line \d+ in '
"""What Python's fault handler writes, with at least one frame of the script."""

SIGNALS = (
    _signal("SIGKILL, not by the OOM killer", _KILLER, r"not the kernel's OOM killer", signals=_KILL),
    _signal(
        "SIGKILL",
        "nodeclient did not kill it. Most often the kernel's OOM killer did (`dmesg | grep -i killed` on {host}), else "
        "a scheduler or a person",
        signals=_KILL,
    ),
    _signal(
        "ended from outside",
        "nodeclient did not send this signal: a scheduler that ends or preempts the job does, an administrator, or the "
        "script itself",
        signals=frozenset({Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT}),
    ),
    _unknown(
        "SIGBUS",
        "most often /dev/shm on {host} is full (docker --shm-size=16g or --ipc=host), or a file that was mapped into "
        "memory was cut short or has gone from its network file system",
        signals=frozenset({Signals.SIGBUS}),
    ),
    _unknown(
        "SIGSEGV, with a stack",
        "native code crashed where the stack in its last lines shows: most often an extension that was built for "
        "another version of torch, CUDA or Python",
        _PYTHON_STACK,
        anywhere=True,
        signals=frozenset({Signals.SIGSEGV}),
    ),
    _unknown(
        "SIGSEGV",
        "native code crashed: most often an extension that was built for another version of torch, CUDA or Python; "
        "PYTHONFAULTHANDLER=1 shows where in the script",
        signals=frozenset({Signals.SIGSEGV}),
    ),
    _unknown(
        "SIGILL",
        "a library uses instructions that the processor of {host} does not have: it was built for a newer one",
        signals=frozenset({Signals.SIGILL}),
    ),
    _unknown(
        "process group left open",
        "the script ended without torch.distributed.destroy_process_group() while the group was still in use (`with "
        "workerlib.init() as ctx`, or ctx.close(), does that); the abort is a consequence, and its last lines may "
        "show why the script ended",
        _LEFT_OPEN,
        signals=frozenset({Signals.SIGABRT}),
    ),
    _unknown(
        "SIGABRT, with a stack",
        "native code gave up; the last lines of its stderr say why, and the stack in them shows where",
        f"{_NO_PROGRAM_ERROR}(?s:.*){_PYTHON_STACK}",
        anywhere=True,
        signals=frozenset({Signals.SIGABRT}),
    ),
    _unknown(
        "SIGABRT",
        "native code gave up; the last lines of its stderr say why, and PYTHONFAULTHANDLER=1 shows where in the script",
        _NO_PROGRAM_ERROR,
        anywhere=True,
        signals=frozenset({Signals.SIGABRT}),
    ),
    _unknown(
        "CPU time",
        "its limit of CPU time is used up (ulimit -t on {host})",
        signals=frozenset({Signals.SIGXCPU}),
    ),
)
