"""Samples: workers that do not find or lose each other, and their GPUs."""

from tests.coordinatord.hints.sample import CUDA_NOTES, Sample, raised

NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
    "{kind} (run with NCCL_DEBUG=WARN for details), NCCL version 2.26.5\n{name}\nLast error:\n{last}"
)
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
    Sample("nccl without CUDA", raised("RuntimeError: Distributed package doesn't have NCCL built in"), says="gloo"),
    Sample("nccl without CUDA", raised("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!")),
    Sample("torch without CUDA", raised("AssertionError: Torch not compiled with CUDA enabled")),
    Sample("torch without CUDA", raised("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'")),
    Sample("no GPU", raised("RuntimeError: No CUDA GPUs are available")),
    Sample(
        "no GPU",
        raised(
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx"
        ),
    ),
    Sample(
        "device named by a number in a text",
        raised("RuntimeError: Invalid device string: '0'"),
        says="int(os.environ['LOCAL_RANK']), or f\"cuda:{os.environ['LOCAL_RANK']}\"",
    ),
    Sample(
        "more workers than GPUs",
        raised("torch.AcceleratorError: CUDA error: invalid device ordinal\n" + CUDA_NOTES),
        says="local rank 0 has no GPU",
    ),
    Sample(
        "two workers on a GPU",
        raised(
            NCCL.format(
                kind="invalid usage",
                name=USAGE,
                last="Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 6000",
            )
        ),
        says="set_device",
    ),
    Sample("broken GPU", ECC, -6, "Xid"),
    Sample("fault in a kernel", raised("RuntimeError: CUDA error: device-side assert triggered\n" + CUDA_NOTES)),
    Sample("fault in a kernel", raised("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")),
]

NETWORK = [
    Sample(
        "NCCL on a hidden network",
        raised(
            NCCL.format(
                kind="unhandled system error",
                name=SYSTEM,
                last="socketStartConnect: Connect to 172.17.0.1<52822> failed : Connection refused",
            )
        ),
        says="chose 172.17.0.1, which",
    ),
    Sample(
        "NCCL cannot connect",
        raised(
            NCCL.format(
                kind="unhandled system error",
                name=SYSTEM,
                last="socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host",
            )
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
    Sample(
        "NCCL finds no interface",
        raised(
            NCCL.format(
                kind="internal error - please report this issue to the NCCL developers",
                name="ncclInternalError: Internal check failed.",
                last="Bootstrap : no socket interface found",
            )
        ),
        says="NCCL_SOCKET_IFNAME",
    ),
    Sample(
        "NCCL finds no interface",
        raised(
            NCCL.format(
                kind="internal error",
                name="ncclInternalError: Internal check failed.",
                last="ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
            )
        ),
    ),
    Sample(
        "NCCL system error",
        raised(
            "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled system error, "
            "NCCL version 2.7.8\nncclSystemError: System call (socket, malloc, munmap, etc) failed."
        ),
        says="NCCL_DEBUG=WARN",
    ),
    Sample(
        "peer gone, NCCL",
        raised(
            NCCL.format(
                kind="remote process exited or there was a network error",
                name="ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
                "prematurely.",
                last="socketProgress: Connection closed by remote peer 10.10.1.3<36138>",
            )
        ),
        says="not the cause",
    ),
    Sample(
        "gloo without interface",
        raised(f"{GLOO}device.cc:84] ifa != nullptr. Unable to find address for: eth7"),
        says="eth7",
    ),
    Sample(
        "gloo on a hidden network",
        raised(f"{GLOO}pair.cc:799] connect [127.0.1.1]:3210: Connection refused"),
        says="127.0.1.1",
    ),
    Sample("gloo cannot connect", raised(f"{GLOO}pair.cc:799] connect [172.31.71.170]:13195: Connection refused")),
    Sample(
        "gloo cannot connect",
        raised(f"RuntimeError: Gloo connectFullMesh failed with {GLOO[14:]}pair.cc:144] no error"),
        says="one store",
    ),
    Sample(
        "peer ended early",
        raised(f"{GLOO}pair.cc:544] Connection closed by peer [127.0.0.1]:41083"),
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
    Sample("name not resolved", raised("socket.gaierror: [Errno -3] Temporary failure in name resolution")),
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
    Sample(
        "store not reached",
        raised(
            f"{DIST}DistNetworkError: The client socket has timed out after 300000ms while trying to connect to "
            "(10.0.0.5, 29400)."
        ),
        says="10.0.0.5:29400",
    ),
    Sample(
        "not all came",
        raised(f"{DIST}DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined."),
    ),
    Sample("peer late at the store", raised(f"{DIST}DistStoreError: wait timeout after 1000ms, keys: /x")),
    Sample(
        "store gone early",
        raised(f"{DIST}DistNetworkError: Broken pipe"),
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
    Sample(
        "store gone",
        raised(
            f"{DIST}DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
            "shutdown or crash?"
        ),
    ),
    Sample(
        "port in use, of torch",
        raised(
            f"{DIST}DistNetworkError: The server socket has failed to listen on any local network address. port: "
            "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
        says="has port 29500",
    ),
    Sample("port in use", raised("OSError: [Errno 98] Address already in use")),
    Sample("server not reached", raised("ConnectionResetError: [Errno 104] Connection reset by peer")),
    Sample("server not reached", raised("TimeoutError: [Errno 110] Connection timed out")),
    Sample("collective timed out", WATCHDOG, -6, "the same ALLREDUCE in time"),
    Sample(
        "gloo timed out", raised(f"{GLOO}unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete")
    ),
]

NETWORK_SAMPLES = [*GPUS, *NETWORK]
