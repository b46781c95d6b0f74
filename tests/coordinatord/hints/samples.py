"""Failures as they really were: what Python, torch, gloo or NCCL wrote when a known cause ended a worker.

Those of Python, torch and gloo were produced with torch 2.13, those of NCCL and CUDA are out of public reports; both
are shortened where they are long.
"""

from dataclasses import dataclass, field
from typing import Any

from nodeclient.core.events import Diagnosis


def raised(exception: str, before: str = "", frames: str = "") -> str:
    """Write an uncaught exception as Python does."""
    return f'{before}Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n{frames}{exception}\n'


@dataclass(frozen=True)
class Sample:
    """One failure: its data, and the cause that is to be found."""

    cause: str
    stderr: str = ""
    exit_code: int = 1
    says: str = ""
    """Part of the hint."""
    nodes: int = 2
    consequences: int = 3
    early: bool = False
    """Another worker had exited with 0 before."""
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    """The other findings."""


def uncaught(cause: str, exception: str, **more: Any) -> Sample:
    """Return the sample of a worker that ended with an exception."""
    return Sample(cause, raised(exception), **more)


def nccl(kind: str, name: str, last: str) -> str:
    """Write an exception about NCCL as torch does."""
    where = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
    hint = f"{kind} (run with NCCL_DEBUG=WARN for details), NCCL version 2.26.5\n{name}\nLast error:\n{last}"
    return f"torch.distributed.DistBackendError: {where}{hint}"


CUDA_NOTES = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

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
    uncaught(
        "OOM killer took a child",
        KILLED_CHILD,
        diagnosis=Diagnosis(message="the kernel's OOM killer ended a process of its cgroup meanwhile (...)"),
        says="the victim",
    ),
    uncaught("DataLoader worker killed", KILLED_CHILD, says="dmesg"),
    uncaught(
        "DataLoader worker killed, not by the OOM killer",
        KILLED_CHILD,
        says="systemd-oomd",
        diagnosis=Diagnosis(message="some process killed the DataLoader's worker, not the kernel's OOM killer"),
    ),
    uncaught(
        "more than all memory",
        "MemoryError",
        says="a wrong size",
        diagnosis=Diagnosis(message="it asked for 4 PiB at once, and the host has 62.8 GiB in all"),
    ),
    Sample(
        "DataLoader worker crashed",
        "ERROR: Unexpected segmentation fault encountered in worker.\n\0"
        + raised("RuntimeError: DataLoader worker (pid 28279) is killed by signal: Segmentation fault. "),
        says="num_workers=0",
    ),
    uncaught("GPU memory", GPU_FULL, says="smaller batch"),
    uncaught("GPU memory", "RuntimeError: CUDA error: out of memory\n" + CUDA_NOTES),
    uncaught("GPU memory with another process", GPU_SHARED, says="process 76883 holds 40.10 GiB"),
    Sample(
        "shared memory",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
        "\0" + raised("RuntimeError: DataLoader worker (pid(s) 28840) exited unexpectedly"),
        says="--shm-size",
    ),
    uncaught(
        "shared memory",
        "RuntimeError: unable to write to file </torch_18692_1954506624_0>: No space left on device (28)",
    ),
    uncaught("host memory", "MemoryError", says="ulimit -v"),
    uncaught(
        "host memory",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.11 PiB for an array with shape "
        "(1000000000000000,) and data type float64",
    ),
    uncaught(
        "host memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)",
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
    uncaught(
        "environment lost before init_process_group",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
        says="sets RANK",
    ),
    uncaught(
        "no init_process_group",
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
        says="workerlib.init()",
    ),
    uncaught(
        "init_process_group twice",
        "ValueError: trying to initialize the default process group twice!",
        says="workerlib.init() calls it too",
    ),
    uncaught(
        "objects to keep without names",
        "TypeError: Context.keep() takes 1 positional argument but 3 were given",
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
    uncaught(
        "module missing, on one node",
        "ModuleNotFoundError: No module named 'apex'",
        says="the other nodes had not failed by then; if they have apex, the environment of host-n1 differs",
        consequences=0,
    ),
    Sample(
        "module missing, on one node",
        "/usr/bin/python3: No module named train.main\n",
        consequences=0,
        says="train.main",
    ),
    uncaught("module missing", "ModuleNotFoundError: No module named 'apex.amp'", says="apex.amp is not installed"),
    uncaught("module missing", "ModuleNotFoundError: No module named 'apex'", nodes=1, consequences=0),
    uncaught("workerlib missing", "ModuleNotFoundError: No module named 'workerlib'"),
    uncaught("another workerlib", "AttributeError: module 'workerlib' has no attribute 'init'"),
    uncaught("another workerlib", "ImportError: cannot import name 'step' from 'workerlib' (/site/workerlib.py)"),
    Sample("module missing", "/usr/bin/python: No module named pkg.nope\n", says="pkg.nope is not installed"),
    uncaught(
        "module missing",
        "RuntimeError: Failed to import transformers.models.llama.modeling_llama because of the following error "
        "(look up to see its traceback):\nNo module named 'torchvision'",
        says="torchvision is not installed",
    ),
    Sample(
        "module missing",
        "/usr/bin/python: Error while finding module specification for 'pkg.nope' (ModuleNotFoundError: No module "
        "named 'pkg')\n",
        says="pkg is not installed",
    ),
    uncaught(
        "library missing",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        says="libcudart.so.12",
    ),
    uncaught(
        "library missing",
        "ImportError: /opt/x/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: "
        "_ZNK3c105Error4whatEv",
        says="flash_attn_2_cuda",
    ),
    uncaught(
        "file missing, on one node",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
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
    uncaught(
        "different collectives",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Float), but Rank "
        "0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[1]).",
    ),
    Sample("command not found", "sh: 1: nosuchcmd: not found\n", 127),
    Sample("command not executable", "sh: 1: ./train.sh: Permission denied\n", 126),
]

LIMITS = [
    uncaught("disk full", "OSError: [Errno 28] No space left on device: '/checkpoints/step_100.pt'"),
    uncaught("file not written", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 16"),
    uncaught("file not written", "RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed"),
    uncaught("file not written", "OSError: 2097152 requested and 1044464 written"),
    uncaught("file system fails", "OSError: [Errno 5] Input/output error: '/data/shard-00017'"),
    uncaught("file system fails", "OSError: [Errno 5] Input/output error: b'/data/shard-00017'"),
    uncaught("file system fails", "OSError: [Errno 116] Stale file handle"),
    uncaught("disk or terminal fails", "OSError: [Errno 5] Input/output error", says="a terminal"),
    uncaught("file system fails", "OSError: [Errno 107] Transport endpoint is not connected: '/bucket/train'"),
    uncaught("too many open files", "OSError: [Errno 24] Too many open files: '/data/shard-00017'"),
    uncaught("too many open files", "RuntimeError: received 0 items of ancdata"),
    uncaught("too many open files on the host", "OSError: [Errno 23] Too many open files in system: '/data/1'"),
    uncaught("too many processes", "RuntimeError: can't start new thread"),
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

SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
USAGE = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
DIST = "torch.distributed."
WATCHDOG = (
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 1 Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:567 (most recent "
    "call first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>) + 0x99 (0x7ff9a0afb969 in "
    "/usr/local/lib/python3.10/dist-packages/torch/lib/libc10.so)\n"
)
ECC = (
    "[rank12]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group watchdog "
    "thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n" + CUDA_NOTES
)

GPUS = [
    uncaught("nccl without CUDA", "RuntimeError: Distributed package doesn't have NCCL built in", says="gloo"),
    uncaught("nccl without CUDA", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    uncaught("torch without CUDA", "AssertionError: Torch not compiled with CUDA enabled"),
    uncaught("torch without CUDA", "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'"),
    uncaught("no GPU", "RuntimeError: No CUDA GPUs are available"),
    uncaught(
        "no GPU",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
        "installed a driver from http://www.nvidia.com/Download/index.aspx",
    ),
    uncaught(
        "device named by a number in a text",
        "RuntimeError: Invalid device string: '0'",
        says="int(os.environ['LOCAL_RANK']), or f\"cuda:{os.environ['LOCAL_RANK']}\"",
    ),
    uncaught(
        "more workers than GPUs",
        "torch.AcceleratorError: CUDA error: invalid device ordinal\n" + CUDA_NOTES,
        says="local rank 0 has no GPU",
    ),
    uncaught(
        "two workers on a GPU",
        nccl("invalid usage", USAGE, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 6000"),
        says="set_device",
    ),
    Sample("broken GPU", ECC, -6, "Xid"),
    uncaught("fault in a kernel", "RuntimeError: CUDA error: device-side assert triggered\n" + CUDA_NOTES),
    uncaught("fault in a kernel", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
]

NETWORK = [
    uncaught(
        "NCCL on a hidden network",
        nccl(
            "unhandled system error",
            SYSTEM,
            "socketStartConnect: Connect to 172.17.0.1<52822> failed : Connection refused",
        ),
        says="chose 172.17.0.1, which",
    ),
    uncaught(
        "NCCL cannot connect",
        nccl(
            "unhandled system error",
            SYSTEM,
            "socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host",
        ),
        says="cannot reach 192.168.19.14",
    ),
    Sample(
        "NCCL cannot connect",
        "node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No "
        "route to host) errno 115(Operation now in progress)\n"
        + raised("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8"),
        says="10.0.0.4",
    ),
    Sample(
        "NCCL cannot connect",
        "v100-13:941227:943077 [0] include/socket.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : "
        "Connection refused\n",
    ),
    uncaught(
        "NCCL finds no interface",
        nccl(
            "internal error - please report this issue to the NCCL developers",
            "ncclInternalError: Internal check failed.",
            "Bootstrap : no socket interface found",
        ),
        says="NCCL_SOCKET_IFNAME",
    ),
    uncaught(
        "NCCL finds no interface",
        nccl(
            "internal error",
            "ncclInternalError: Internal check failed.",
            "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
        ),
    ),
    uncaught(
        "NCCL system error",
        "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled system error, "
        "NCCL version 2.7.8\nncclSystemError: System call (socket, malloc, munmap, etc) failed.",
        says="NCCL_DEBUG=WARN",
    ),
    uncaught(
        "peer gone, NCCL",
        nccl(
            "remote process exited or there was a network error",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "socketProgress: Connection closed by remote peer 10.10.1.3<36138>",
        ),
        says="not the cause",
    ),
    uncaught(
        "gloo without interface",
        f"{GLOO}device.cc:84] ifa != nullptr. Unable to find address for: eth7",
        says="eth7",
    ),
    uncaught(
        "gloo on a hidden network",
        f"{GLOO}pair.cc:799] connect [127.0.1.1]:3210: Connection refused",
        says="127.0.1.1",
    ),
    uncaught("gloo cannot connect", f"{GLOO}pair.cc:799] connect [172.31.71.170]:13195: Connection refused"),
    uncaught(
        "gloo cannot connect",
        f"RuntimeError: Gloo connectFullMesh failed with {GLOO[14:]}pair.cc:144] no error",
        says="one store",
    ),
    uncaught(
        "peer ended early",
        f"{GLOO}pair.cc:544] Connection closed by peer [127.0.0.1]:41083",
        early=True,
        says="uneven",
    ),
    Sample(
        "peer gone, gloo",
        "[rank0]: "
        + raised(
            f"{GLOO}pair.cc:537] Read error [127.0.0.1]:3747: Connection reset by peer. This is typically caused by a "
            "remote worker hanging or bugs in the application. Check the logs of the remote worker."
        ).replace("\n", "\n[rank0]: "),
    ),
    Sample(
        "name not resolved, by torch",
        "[W1121 12:25:20.668433781 socket.cpp:764] [c10d] The IPv6 network addresses of (gpu-07.internal, 1234) cannot "
        "be retrieved (gai error: -2 - Name or service not known).\n"
        + raised(
            f"{DIST}DistNetworkError: The client socket has timed out after 3000ms while trying to connect to "
            "(gpu-07.internal, 1234)."
        ),
        says="cannot resolve gpu-07.internal",
    ),
    uncaught("name not resolved", "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    Sample(
        "no name server answers",
        "[W1122 04:22:54.848192340 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. "
        "err=-3\n"
        + raised(
            f"{DIST}DistNetworkError: The client socket has timed out after 10000ms while trying to connect to "
            "(10.0.0.5, 29400)."
        ),
        says="/etc/hosts",
    ),
    uncaught(
        "store not reached",
        f"{DIST}DistNetworkError: The client socket has timed out after 300000ms while trying to connect to "
        "(10.0.0.5, 29400).",
        says="10.0.0.5:29400",
    ),
    uncaught(
        "not all came",
        f"{DIST}DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined.",
    ),
    uncaught("peer late at the store", f"{DIST}DistStoreError: wait timeout after 1000ms, keys: /x"),
    uncaught(
        "store gone early",
        f"{DIST}DistNetworkError: Broken pipe",
        early=True,
        says="torch.distributed.barrier()",
    ),
    Sample(
        "store gone while a group is made",
        raised(
            f"{DIST}DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
            "shutdown or crash?",
            frames='  File "/torch/distributed/rendezvous.py", line 280, in _env_rendezvous_handler\n'
            "    store = _create_c10d_store(\n",
        ),
        says="one store",
    ),
    Sample(
        "store gone while a group is made",
        raised(
            f"{DIST}DistNetworkError: Broken pipe",
            frames='  File "/torch/distributed/distributed_c10d.py", line 2169, in _new_process_group_helper\n'
            "    backend_class = ProcessGroupGloo(\n",
        ),
        says="one store",
    ),
    uncaught(
        "store gone",
        f"{DIST}DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
        "shutdown or crash?",
    ),
    uncaught(
        "port in use, of torch",
        f"{DIST}DistNetworkError: The server socket has failed to listen on any local network address. port: "
        "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        says="has port 29500",
    ),
    uncaught("port in use", "OSError: [Errno 98] Address already in use"),
    uncaught("server not reached", "ConnectionResetError: [Errno 104] Connection reset by peer"),
    uncaught("server not reached", "TimeoutError: [Errno 110] Connection timed out"),
    Sample("collective timed out", WATCHDOG, -6, "the same ALLREDUCE in time"),
    uncaught("gloo timed out", f"{GLOO}unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"),
]

SAMPLES = [*MEMORY, *LAUNCHING, *LIMITS, *SIGNALS, *GPUS, *NETWORK]

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
