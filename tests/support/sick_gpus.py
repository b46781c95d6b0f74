"""A library with NVML's functions, whose GPUs fall ill when variables of the environment say so."""

NVML = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct {
    unsigned field, scope; long long time, latency; int type, error; union { unsigned number; double other; } value;
} nvmlFieldValue_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char name[32]; } nvmlPciInfo_t;
int nvmlInit_v2(void) {
    while (getenv("TEST_NVML_HANGS")) pause();
    return 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = getenv("TEST_GPUS") ? atoi(getenv("TEST_GPUS")) : 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%ld", (long)device);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, nvmlPciInfo_t *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x3a + (long)device;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *memory) {
    memory->used = getenv("TEST_RECOVERY") ? 1ul << 30 : 0;
    return 0;
}
int nvmlDeviceGetFieldValues(void *device, int count, nvmlFieldValue_t *values) {
    const char *action = getenv("TEST_RECOVERY");
    if (count != 1 || values->field != 230) return 2;
    values->error = action && !strcmp(action, "none") ? 3 : 0;
    values->type = 1;
    values->value.number = action ? atoi(action) : 0;
    return 0;
}
"""
"""GPU-1 at 0000:3b:00.0 and GPU-2 at 0000:3c:00.0: so many of them as `TEST_GPUS` says, which need `TEST_RECOVERY`."""
