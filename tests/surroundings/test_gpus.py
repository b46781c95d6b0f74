"""GPUs whose driver holds memory for a while after the processes that had it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator
from tests.support.namespaces import apart
from tests.surroundings.support import join, went

pytestmark = pytest.mark.slow

NVML = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { snprintf(uuid, length, "GPU-1"); return 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *memory) {
    memory->used = unlink(getenv("TEST_HELD")) == 0 ? 2ull << 30 : 0;
    return 0;
}
"""
"""While there is a file, the memory of the GPU is in use; who asks for the first time is the last who sees that."""

DEVICES = """
mount -t tmpfs none /mnt; cp -a /dev/null /dev/zero /dev/urandom /dev/random /mnt; mkdir /mnt/shm
touch /mnt/nvidiactl /mnt/nvidia0 /mnt/nvidia-uvm; mount --move /mnt /dev"""

SCRIPT = """
import os, pathlib
if os.environ["COORDINATORD_ROUND"] == "1":
    pathlib.Path(os.environ["TEST_HELD"]).touch()
    raise SystemExit(1)
"""


def test_the_next_round_waits_for_memory_of_gpus_that_the_driver_still_holds(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build a library that speaks like NVML")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=NVML, text=True, check=True)
    environ = {"LD_LIBRARY_PATH": str(tmp_path), "TEST_HELD": str(tmp_path / "held")}
    node = (*apart("--mount", setup=DEVICES), *join(coordinator, "--max-restarts", "1"))
    ended = went(*node, sys.executable, "-c", SCRIPT, environ=environ)
    said = "memory of GPUs is in use: 2.0 GiB of nvidia0 by no process that this node sees"
    assert f"{said}; the next round waits for 50 s at most" in ended.stderr
    assert "starting round 2" in ended.stderr.partition(said)[2]
