"""A library with NVML's functions, whose GPUs are what variables of the environment say."""

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
static int is(const char *variable, void *device) {
    return getenv(variable) && atoi(getenv(variable)) == (long)device;
}
int nvmlInit_v2(void) {
    while (getenv("TEST_NVML_HANGS")) pause();
    return getenv("TEST_NVML_FAILS") ? 9 : 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = getenv("TEST_GPUS") ? atoi(getenv("TEST_GPUS")) : 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    if (is("TEST_NO_UUID", device)) return 999;
    snprintf(uuid, length, getenv("TEST_UUID") ? getenv("TEST_UUID") : "GPU-%ld", (long)device);
    return 0;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    *minor = 2 - (long)device;
    return getenv("TEST_NO_MINOR") ? 3 : 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, nvmlPciInfo_t *info) {
    memset(info, 0, sizeof *info);
    info->domain = 1; info->bus = 0x3a + (long)device; info->device = 3;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *memory) {
    if (memory->version != (sizeof(nvmlMemory_v2_t) | 2 << 24)) return 25;
    memory->used = getenv("TEST_RECOVERY") ? 1ul << 30 : getenv("TEST_IN_USE") ? (unsigned long)device << 30 : 0;
    return getenv("TEST_NO_MEMORY_INFO") ? 3 : 0;
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
"""GPU-1 at 0001:3b:03.0, which is /dev/nvidia1, and GPU-2 at 0001:3c:03.0, which is /dev/nvidia0.

`TEST_GPUS` says how many there are, and `TEST_RECOVERY` what they need. With `TEST_IN_USE` as many GiB are in use as a
GPU has for a number.
"""
