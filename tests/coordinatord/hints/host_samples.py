"""Samples: memory, disks, limits and signals, how a script was started; and what fails without a known cause."""

from nodeclient.core.events import Diagnosis
from tests.coordinatord.hints.sample import CUDA_NOTES, Sample, raised

CONTAINER_FULL = Diagnosis(message="killed by the kernel's OOM killer (memory limit of its cgroup: 64 GiB)")
KILLED_CHILD = (
    "RuntimeError: DataLoader worker (pid 28844) is killed by signal: Killed. \n\nThe above exception was the direct "
    "cause of the following exception:\n\nTraceback (most recent call last):\n"
    '  File "train.py", line 8, in <module>\nRuntimeError: DataLoader worker (pid(s) 28844) exited unexpectedly'
)
GPU_FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 MiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 115.69 MiB is free. Including non-PyTorch memory, this process has 23.57 GiB memory in use. Of the "
    "allocated memory 22.14 GiB is allocated by PyTorch, and 910.35 MiB is reserved by PyTorch but unallocated."
)
GPU_SHARED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 35.60 GiB. GPU 0 has a total capacity of 79.33 GiB "
    "of which 26.16 GiB is free. Process 76883 has 40.10 GiB memory in use. Including non-PyTorch memory, this process "
    "has 13.06 GiB memory in use. Of the allocated memory 11.97 GiB is allocated by PyTorch."
)

ABORT = "terminate called without an active exception\n"
ABORTED = "Fatal Python error: Aborted\n\nCurrent thread 0x00007ff4 (most recent call first):\n  <no Python frame>\n"


def fatal(how: str) -> str:
    """Write the stack of a program that a signal ends, as Python's fault handler does."""
    frame = 'File "/app/train.py", line 9 in <module>'
    return f"Fatal Python error: {how}\n\nCurrent thread 0x00007ff4 (most recent call first):\n  {frame}\n"


MEMORY = [
    Sample("OOM killer", "step 210\n", -9, "docker --memory", diagnosis=CONTAINER_FULL),
    Sample(
        "OOM killer took a child",
        raised(KILLED_CHILD),
        diagnosis=Diagnosis(message="the kernel's OOM killer ended a process of its cgroup meanwhile (...)"),
        says="the victim",
    ),
    Sample("DataLoader worker killed", raised(KILLED_CHILD), says="dmesg"),
    Sample(
        "DataLoader worker killed, not by the OOM killer",
        raised(KILLED_CHILD),
        says="systemd-oomd",
        diagnosis=Diagnosis(message="some process killed the DataLoader's worker, not the kernel's OOM killer"),
    ),
    Sample(
        "more than all memory",
        raised("MemoryError"),
        says="a wrong size",
        diagnosis=Diagnosis(message="it asked for 4 PiB at once, and the host has 62.8 GiB in all"),
    ),
    Sample(
        "DataLoader worker crashed",
        "ERROR: Unexpected segmentation fault encountered in worker.\n\0"
        + raised("RuntimeError: DataLoader worker (pid 28279) is killed by signal: Segmentation fault. "),
        says="num_workers=0",
    ),
    Sample("GPU memory", raised(GPU_FULL), says="smaller batch"),
    Sample("GPU memory", raised("RuntimeError: CUDA error: out of memory\n" + CUDA_NOTES)),
    Sample("GPU memory with another process", raised(GPU_SHARED), says="process 76883 holds 40.10 GiB"),
    Sample(
        "shared memory",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
        "\0" + raised("RuntimeError: DataLoader worker (pid(s) 28840) exited unexpectedly"),
        says="--shm-size",
    ),
    Sample(
        "shared memory",
        raised("RuntimeError: unable to write to file </torch_18692_1954506624_0>: No space left on device (28)"),
    ),
    Sample("host memory", raised("MemoryError"), says="ulimit -v"),
    Sample(
        "host memory",
        raised(
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.11 PiB for an array with shape "
            "(1000000000000000,) and data type float64"
        ),
    ),
    Sample(
        "host memory",
        raised(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
    ),
    Sample(
        "host memory",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
        -6,
    ),
]

LAUNCHING = [
    Sample(
        "script without --local-rank",
        "usage: train.py [-h] [--epochs EPOCHS]\ntrain.py: error: unrecognized arguments: --local-rank=0\n",
        2,
        "--use-env",
    ),
    Sample(
        "script with --local-rank",
        "usage: train.py [-h] --local_rank LOCAL_RANK\n"
        "train.py: error: the following arguments are required: --local_rank\n",
        2,
        "nodeclient launch",
    ),
    Sample(
        "environment lost",
        raised("KeyError: 'LOCAL_RANK'", frames='  File "<frozen os>", line 679, in __getitem__\n'),
        says="sets LOCAL_RANK",
    ),
    Sample(
        "environment lost before init_process_group",
        raised(
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, but not set"
        ),
        says="sets RANK",
    ),
    Sample(
        "no init_process_group",
        raised(
            "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
        ),
        says="workerlib.init()",
    ),
    Sample(
        "init_process_group twice",
        raised("ValueError: trying to initialize the default process group twice!"),
        says="workerlib.init() calls it too",
    ),
    Sample(
        "objects to keep without names",
        raised("TypeError: Context.keep() takes 1 positional argument but 3 were given"),
        says="ctx.keep(model=model, optim=optimizer)",
    ),
    Sample(
        "script not there, on one node",
        "python: can't open file '/data/train.py': [Errno 2] No such file or directory\n",
        2,
        "/data/train.py is not there on host-n1; the other nodes had not failed by then",
        consequences=0,
    ),
    Sample(
        "script not there",
        "/usr/bin/python3: can't open file '/data/train.py': [Errno 2] No such file or directory\n",
        2,
    ),
    Sample(
        "module missing, on one node",
        raised("ModuleNotFoundError: No module named 'apex'"),
        says="the other nodes had not failed by then; if they have apex, the environment of host-n1 differs",
        consequences=0,
    ),
    Sample(
        "module missing, on one node",
        "/usr/bin/python3: No module named train.main\n",
        consequences=0,
        says="train.main",
    ),
    Sample(
        "module missing", raised("ModuleNotFoundError: No module named 'apex.amp'"), says="apex.amp is not installed"
    ),
    Sample("module missing", raised("ModuleNotFoundError: No module named 'apex'"), nodes=1, consequences=0),
    Sample("workerlib missing", raised("ModuleNotFoundError: No module named 'workerlib'")),
    Sample("another workerlib", raised("AttributeError: module 'workerlib' has no attribute 'init'")),
    Sample("another workerlib", raised("ImportError: cannot import name 'step' from 'workerlib' (/site/workerlib.py)")),
    Sample("module missing", "/usr/bin/python: No module named pkg.nope\n", says="pkg.nope is not installed"),
    Sample(
        "module missing",
        "/usr/bin/python: Error while finding module specification for 'pkg.nope' (ModuleNotFoundError: No module "
        "named 'pkg')\n",
        says="pkg is not installed",
    ),
    Sample(
        "library missing",
        raised("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
        says="libcudart.so.12",
    ),
    Sample(
        "library missing",
        raised(
            "ImportError: /opt/x/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: "
            "_ZNK3c105Error4whatEv"
        ),
        says="flash_attn_2_cuda",
    ),
    Sample(
        "file missing, on one node",
        raised("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"),
        says="the other nodes had not failed by then; if they have /data/train.bin",
        consequences=0,
    ),
    Sample(
        "different collectives",
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
        "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 72 vs 4. Received "
        "data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n",
        -6,
        "an exception that one catches",
    ),
    Sample(
        "different collectives",
        raised(
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Float), but Rank "
            "0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[1])."
        ),
    ),
    Sample("command not found", "sh: 1: nosuchcmd: not found\n", 127),
    Sample("command not executable", "sh: 1: ./train.sh: Permission denied\n", 126),
]

LIMITS = [
    Sample("disk full", raised("OSError: [Errno 28] No space left on device: '/checkpoints/step_100.pt'")),
    Sample(
        "file not written", raised("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 16")
    ),
    Sample(
        "file not written", raised("RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed")
    ),
    Sample("file not written", raised("OSError: 2097152 requested and 1044464 written")),
    Sample("file system fails", raised("OSError: [Errno 5] Input/output error: '/data/shard-00017'")),
    Sample("file system fails", raised("OSError: [Errno 5] Input/output error: b'/data/shard-00017'")),
    Sample("file system fails", raised("OSError: [Errno 116] Stale file handle")),
    Sample("disk or terminal fails", raised("OSError: [Errno 5] Input/output error"), says="a terminal"),
    Sample("file system fails", raised("OSError: [Errno 107] Transport endpoint is not connected: '/bucket/train'")),
    Sample("too many open files", raised("OSError: [Errno 24] Too many open files: '/data/shard-00017'")),
    Sample("too many open files", raised("RuntimeError: received 0 items of ancdata")),
    Sample("too many open files on the host", raised("OSError: [Errno 23] Too many open files in system: '/data/1'")),
    Sample("too many processes", raised("RuntimeError: can't start new thread")),
    Sample(
        "too many processes",
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily "
        "unavailable\n",
        -6,
    ),
]

SIGNALS = [
    Sample(
        "SIGKILL, not by the OOM killer",
        "step 210\n",
        -9,
        "systemd-oomd",
        diagnosis=Diagnosis(message="some process sent it, not the kernel's OOM killer"),
    ),
    Sample("SIGKILL", "step 210\n", -9, "dmesg"),
    Sample("ended from outside", "step 210\n", -15, "preempts"),
    Sample("SIGBUS", "", -7, "was cut short"),
    Sample(
        "SIGSEGV",
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007ff4 (most recent call first):\n",
        -11,
    ),
    Sample("SIGSEGV, with a stack", fatal("Segmentation fault"), -11, "the stack in its last lines"),
    Sample("SIGILL", "", -4),
    Sample("SIGABRT", "free(): invalid pointer\n", -6, "PYTHONFAULTHANDLER"),
    Sample("SIGABRT, with a stack", f"free(): invalid pointer\n{fatal('Aborted')}", -6, "the stack in them"),
    Sample("process group left open", f"no images in /nonexistent/train\n{ABORT}", -6, "ctx.close()"),
    Sample("process group left open", f"step 210\n{ABORT}\n{ABORTED}", 134, "a consequence"),
    Sample("GPU memory", raised(GPU_FULL) + ABORT, -6),
    Sample("CPU time", "", -24),
]

HOST_SAMPLES = [*MEMORY, *LAUNCHING, *LIMITS, *SIGNALS]

ORDINARY = [
    raised("ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 64])"),
    raised("KeyError: 'RANK'"),
    raised("KeyError: 'state_dict'"),
    raised("AssertionError"),
    raised("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"),
    raised("PermissionError: [Errno 13] Permission denied: '/checkpoints'"),
    raised("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."),
    raised('RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "fc.weight". '),
    raised("ValueError: loss is nan at step 12"),
    raised(
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset by peer'))",
        before="WARNING: retrying after Connection refused\nINFO: out of memory handler installed, MemoryError seen\n",
    ),
    raised(
        "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "data.py", line 6, in __getitem__\nValueError: bad sample'
    ),
    "/usr/bin/python: No module named pkg.__main__; 'pkg' is a package and cannot be directly executed\n",
    "usage: train.py [-h]\ntrain.py: error: argument --epochs: invalid int value: 'x'\n",
    "error: configuration is not valid\n",
    "",
]
"""Failures that the script causes itself: a hint would only mislead."""
