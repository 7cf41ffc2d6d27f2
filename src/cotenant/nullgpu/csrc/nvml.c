/* libnvidia-ml.so.1: one GPU without processes (nvml.h). torch asks it for the device count and for fabric handles. */
#include "null_gpu.h"

#include <stdio.h>
#include <string.h>

#define NOT_SUPPORTED 3
#define UUID "GPU-42424242-4242-4242-4242-424242424242"

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { snprintf(uuid, length, "%s", UUID); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { snprintf(name, length, "%s", null_gpu()->name); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long total_free_used[3]) {
    total_free_used[0] = null_gpu()->total_bytes;
    total_free_used[1] = null_free_bytes();
    total_free_used[2] = total_free_used[0] - total_free_used[1];
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = null_gpu()->compute_major;
    *minor = null_gpu()->compute_minor;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) { *count = 0; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, void *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) { return NOT_SUPPORTED; }
/* nvmlGpuFabricInfoV_t: behind the version, state 0 says that there is no fabric. torch does not take an error here
   (c10/cuda/PeerToPeerAccess.cpp) and would end. */
int nvmlDeviceGetGpuFabricInfoV(void *device, char *info) { memset(info + 4, 0, 29); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { snprintf(version, length, "580.65.06"); return 0; }
const char *nvmlErrorString(int status) { return status ? "Not Supported" : "Success"; }
