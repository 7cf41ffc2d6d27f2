/* libnvidia-ml.so.1: idle GPUs without processes (nvml.h). torch asks it for the device count and for fabric handles,
   scripts read memory and sensors. A handle is the index of a device, plus one. */
#include "null_gpu.h"

#include <stdio.h>
#include <string.h>

#define NOT_SUPPORTED 3
#define INVALID_ARGUMENT 2
#define DRIVER_VERSION "580.65.06"
#define CUDA_DRIVER 13000
/* Of an idle GPU, as tracing/sensors/nvidia_smi.py has them */
#define TEMPERATURE_C 30
#define POWER_MW 50000
#define POWER_LIMIT_MW 400000
#define CLOCK_MHZ 1410

static unsigned index_of(void *device) { return (unsigned)((uintptr_t)device - 1); }

static int handle_of(unsigned index, void **device) {
    if (index >= (unsigned)null_device_count()) return INVALID_ARGUMENT;
    *device = (void *)((uintptr_t)index + 1);
    return 0;
}

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount(unsigned *count) { *count = null_device_count(); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return nvmlDeviceGetCount(count); }
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return handle_of(index, device); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return handle_of(index, device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return handle_of(0, device); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char own[80];
    for (int i = 0; i < null_device_count(); i++) {
        snprintf(own, sizeof own, NULL_UUID_FORMAT, NULL_UUID_LAST(i));
        if (!strcmp(own, uuid)) return handle_of(i, device);
    }
    return INVALID_ARGUMENT;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, NULL_UUID_FORMAT, NULL_UUID_LAST(index_of(device)));
    return 0;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = index_of(device); return 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *number) { *number = index_of(device); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { snprintf(name, length, "%s", null_gpu()->name); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long total_free_used[3]) {
    total_free_used[0] = null_gpu()->total_bytes;
    total_free_used[1] = null_free_bytes();
    total_free_used[2] = total_free_used[0] - total_free_used[1];
    return 0;
}
/* nvmlMemory_v2_t: version, then total, reserved, free, used. */
int nvmlDeviceGetMemoryInfo_v2(void *device, unsigned long long *info) {
    info[1] = null_gpu()->total_bytes;
    info[2] = 0;
    info[3] = null_free_bytes();
    info[4] = info[1] - info[3];
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = null_gpu()->compute_major;
    *minor = null_gpu()->compute_minor;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned gpu_memory[2]) { gpu_memory[0] = gpu_memory[1] = 0; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = TEMPERATURE_C; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = POWER_MW; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { *mw = POWER_LIMIT_MW; return 0; }
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw) { *mw = POWER_LIMIT_MW; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) { *mj = 0; return 0; }
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = CLOCK_MHZ; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) { *mhz = CLOCK_MHZ; return 0; }
int nvmlDeviceGetPerformanceState(void *device, int *state) { *state = 0; return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) { *current = *pending = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *processes) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) { *count = 0; return 0; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *processes) { *count = 0; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, void *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) { return NOT_SUPPORTED; }
/* nvmlGpuFabricInfoV_t: behind the version, state 0 says that there is no fabric. torch does not take an error here
   (c10/cuda/PeerToPeerAccess.cpp) and would end. */
int nvmlDeviceGetGpuFabricInfoV(void *device, char *info) { memset(info + 4, 0, 29); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = CUDA_DRIVER; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_DRIVER; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { snprintf(version, length, DRIVER_VERSION); return 0; }
int nvmlSystemGetNVMLVersion(char *version, unsigned length) { snprintf(version, length, "13." DRIVER_VERSION); return 0; }
const char *nvmlErrorString(int status) { return status ? "Not Supported" : "Success"; }
