"""The tables of known causes at the start of a script: its command, files that its host lacks, and its GPUs. Pure.

Each row has a name, advice, and a pattern that finds the cause in the output of a failed worker (`HintRule`, which
explains `anywhere` and `alone`). The first row that matches counts, so a row stands before those that would match more
failures.
"""

from __future__ import annotations

from functools import partial

from coordinatord.hints.rule import HintRule
from coordinatord.protocol.messages import Cause

_user_code = partial(HintRule, Cause.USER_CODE)
_device = partial(HintRule, Cause.DEVICE)

_NO_MODULE = r"No module named '?(?P<module>[\w.]+)(?![\w.;])"
"""Python's words for a module that is missing. If a semicolon follows the name, it is a package that exists but cannot
be run, and does not match. They begin the error of `python -m`, and end that of a lazy import in transformers."""

_ENVIRONMENT_LOST = (
    "nodeclient sets {variable} for the process that it starts, so something between that and the script drops the "
    "environment: sudo, env -i, docker run, ssh or srun (sudo -E, docker run -e, srun --export=ALL keep it)"
)

LAUNCHING = (
    _user_code(
        "script without --local-rank",
        "the script does not take --local-rank, it reads LOCAL_RANK from the environment: start it with `nodeclient "
        "run`, or pass --use-env to `nodeclient launch`",
        r"(?:unrecognized arguments|No such option|no such option):.*--local[-_]rank",
    ),
    _user_code(
        "script with --local-rank",
        "the script wants its local rank as an argument: start it with `nodeclient launch` instead of `nodeclient run`",
        r"(?:arguments are required|Missing option).*--local[-_]rank",
    ),
    _user_code(
        "environment lost",
        _ENVIRONMENT_LOST,
        (
            r"(?s)(?:<frozen os>|/os\.py).*"  # a frame of `os.environ`, unlike that of another dict
            r"KeyError: '(?P<variable>(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT))'"
        ),
        anywhere=True,
    ),
    _user_code(
        "environment lost before init_process_group",
        _ENVIRONMENT_LOST,
        r"environment variable (?P<variable>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
    ),
    _user_code(
        "no init_process_group",
        "the script uses torch.distributed before it has called torch.distributed.init_process_group(), which each "
        "worker must call first; workerlib.init() does it",
        r"Default process group has not been initialized",
    ),
    _user_code(
        "init_process_group twice",
        "init_process_group() is called a second time. workerlib.init() calls it too, so a script with that line "
        "leaves its own out; a library asks torch.distributed.is_initialized() before",
        r"trying to initialize the default process group twice",
    ),
    _user_code(
        "objects to keep without names",
        "pass each object to keep() by a name of your choice: ctx.keep(model=model, optim=optimizer)",
        r"Context\.keep\(\) takes 1 positional argument",
    ),
    _user_code(
        "script not there, on one node",
        "{path} is not there on {host}; the other nodes had not failed by then: if they have it, copy it, or mount the "
        "shared file system; a relative path begins where nodeclient was started",
        r"can't open file '(?P<path>[^']+)': \[Errno 2\]",
        alone=True,
    ),
    _user_code(
        "script not there",
        "{path} is not there on {host}; a relative path begins where nodeclient was started",
        r"can't open file '(?P<path>[^']+)': \[Errno 2\]",
    ),
    _user_code(
        "workerlib missing",
        "workerlib is a part of coordinatord, which is not installed for the Python that runs the script on {host}: "
        "install it there as well, as on the other hosts",
        r"ModuleNotFoundError: No module named 'workerlib'",
    ),
    _user_code(
        "another workerlib",
        "the Python that runs the script on {host} finds a workerlib that is not coordinatord's: another project has a "
        "package of that name (uninstall it and coordinatord, then install coordinatord again), or a workerlib.py is "
        "beside the script or on PYTHONPATH",
        r"module 'workerlib' has no attribute '(?:init|elastic|record|rounds|section|step)'"
        r"|cannot import name '\w+' from 'workerlib'",
    ),
    _user_code(
        "module missing, on one node",
        "the other nodes had not failed by then; if they have {module}, the environment of {host} differs from theirs "
        "(compare `which python` and `pip list`): install it there",
        _NO_MODULE,
        alone=True,
    ),
    _user_code(
        "module missing",
        "{module} is not installed for the Python that runs the script on {host}, or not where it looks for modules: "
        "is this the right environment (`which python`)?",
        rf"(?:ModuleNotFoundError: |^|see its traceback\): ){_NO_MODULE}",
    ),
    _user_code(
        "library missing",
        "{host} lacks the library {library}, or finds another version of it: compare its drivers, image and "
        "LD_LIBRARY_PATH with those of a node that works",
        r"(?P<library>[\w.+-]+\.so[\d.]*): (?:cannot open shared object file|undefined symbol)",
    ),
    _user_code(
        "file missing, on one node",
        "the other nodes had not failed by then; if they have {path}, is it on a file system that {host} has not "
        "mounted, or in a local copy that it lacks?",
        r"FileNotFoundError: .*No such file or directory: '(?P<path>[^']+)'",
        alone=True,
    ),
    _user_code(
        "command not found",
        "a command was not found on {host}: is it installed there, and on the PATH that nodeclient was started with?",
        exit_codes=frozenset({127}),
    ),
    _user_code(
        "command not executable",
        "the command is not executable on {host} (chmod +x), or its file system is mounted noexec",
        exit_codes=frozenset({126}),
    ),
)

GPUS = (
    _user_code(
        "nccl without CUDA",
        "this worker has no CUDA: without GPUs use the backend gloo (workerlib.init() chooses by itself); with GPUs, "
        "install a torch that was built for CUDA on {host}, and let the container see them (docker --gpus all)",
        r"doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs",
    ),
    _user_code(
        "torch without CUDA",
        "the torch on {host} was built without CUDA: install the build for CUDA, or do not use GPUs there",
        r"Torch not compiled with CUDA enabled|module 'torch\._C' has no attribute '_cuda_",
    ),
    _device(
        "no GPU",
        "torch sees no usable GPU on {host}: does `nvidia-smi` work there, does the container see GPUs (docker --gpus "
        "all), and is CUDA_VISIBLE_DEVICES right?",
        (
            r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device is detected"
            r"|CUDA driver version is insufficient|NVIDIA driver on your system is too old"
            r"|CUDA driver initialization failed"
        ),
    ),
    _user_code(
        "device named by a number in a text",
        "torch takes '{device}' for the name of a device: pass the number, int(os.environ['LOCAL_RANK']), or "
        "f\"cuda:{{os.environ['LOCAL_RANK']}}\"; environment variables are strings",
        r"Invalid device string: '(?P<device>\d+)'",
    ),
    _user_code(
        "more workers than GPUs",
        "local rank {local_rank} has no GPU of that number on {host}: start one worker a GPU (--nproc-per-node gpu), "
        "and check CUDA_VISIBLE_DEVICES",
        r"invalid device ordinal",
    ),
    _user_code(
        "two workers on a GPU",
        "two workers use one GPU: call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else "
        "(workerlib.init() does), and start no more than one worker a GPU",
        r"Duplicate GPU detected",
        anywhere=True,
    ),
    _device(
        "broken GPU",
        "a GPU of {host} is broken or hangs: look for Xid in its kernel log (`dmesg | grep Xid`), and keep the node "
        "out until it was reset or replaced",
        r"uncorrectable (?:NVLink error|ECC error)|GPU has fallen off the bus",
        anywhere=True,
    ),
    _user_code(
        "fault in a kernel",
        "the fault lies in an earlier call than the traceback shows: CUDA_LAUNCH_BLOCKING=1 makes it show the right "
        "one; most often an index is out of range (labels, embeddings)",
        r"device-side assert triggered|an illegal memory access was encountered",
        anywhere=True,
    ),
)
