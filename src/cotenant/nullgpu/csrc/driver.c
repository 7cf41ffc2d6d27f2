/* libcuda.so.1: the documented driver API (cuda.h). What is not here is a stub that returns CUDA_SUCCESS. */
#define _GNU_SOURCE
#include "null_gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char context[64]; /* callers compare its address, nothing reads it */
#define CONTEXT ((CUcontext)context)

/* Device */
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = null_device_count(); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal < 0 || ordinal >= null_device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, length, "%s", null_gpu()->name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0x42, sizeof *uuid);
    ((char *)uuid)[15] = NULL_UUID_LAST(device);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { *bytes = null_gpu()->total_bytes; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = null_attribute(attribute);
    return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    *major = null_gpu()->compute_major;
    *minor = null_gpu()->compute_minor;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) { snprintf(id, length, "0000:01:00.0"); return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "error of the null GPU";
    return CUDA_SUCCESS;
}

/* Context: there is one, and it is always current */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) { *found = CONTEXT; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *found) { *found = CONTEXT; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext *found) { if (found) *found = CONTEXT; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext *found) { *found = CONTEXT; return CUDA_SUCCESS; }

/* Memory */
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = null_gpu()->total_bytes;
    *free_bytes = null_free_bytes();
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    *address = (CUdeviceptr)null_allocate(bytes, __builtin_return_address(0));
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    if (null_is_managed((void *)address)) null_unpin((void *)address, 1);
    else if (null_release((void *)address)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    *address = (CUdeviceptr)null_manage(bytes);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    void *begin = NULL;
    size_t found = null_allocation_of((void *)address, &begin);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = (CUdeviceptr)begin;
    if (bytes) *bytes = found;
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { null_copy(to, (void *)from, bytes); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) { return cuMemcpyDtoH_v2(to, from, bytes); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) { null_copy((void *)to, from, bytes); return CUDA_SUCCESS; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) { return cuMemcpyHtoD_v2(to, from, bytes); }
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    int is_device = null_is_device((void *)address);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = CONTEXT; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; break;
    default: memset(value, 0, sizeof(int));
    }
    return is_device || null_is_pinned((void *)address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Virtual memory, which PyTorch's expandable segments use: bytes are committed when they are created, not when mapped */
struct physical {
    size_t bytes;
    int is_outside;
};
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    *address = (CUdeviceptr)null_reserve_addresses(bytes, alignment);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) { return cuMemFree_v2(address); }
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option) {
    *bytes = (size_t)2 << 20;
    return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags) {
    int is_outside = null_is_outside(__builtin_return_address(0));
    if (null_commit(bytes, is_outside)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *made = null_object(sizeof *made);
    *made = (struct physical){bytes, is_outside};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct physical *made = (struct physical *)(uintptr_t)handle;
    null_uncommit(made->bytes, made->is_outside);
    free(made);
    return CUDA_SUCCESS;
}

/* Streams, events, modules, kernels */
CUresult cuEventCreate(CUevent *event, unsigned flags) { *event = null_object(64); return CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream *stream, unsigned flags) { *stream = null_object(64); return CUDA_SUCCESS; }
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) { return cuStreamCreate(stream, flags); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = null_object(64); return CUDA_SUCCESS; }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule *module, const char *file) { return cuModuleLoadData(module, NULL); }
CUresult cuModuleUnload(CUmodule module) { free(module); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { *function = null_object(64); return CUDA_SUCCESS; }
CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    *address = (CUdeviceptr)null_reserve_addresses(1, 0);
    if (bytes) *bytes = 8;
    return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned count,
                           CUlibraryOption *more, void **more_values, unsigned more_count) {
    *library = null_object(64);
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) { *kernel = null_object(64); return CUDA_SUCCESS; }
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) { *function = (CUfunction)kernel; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared_bytes) {
    int fitting = null_gpu()->threads_per_sm / (threads > 0 ? threads : 1);
    *blocks = fitting > 0 ? fitting : 1;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    *clusters = null_gpu()->sm_count;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra) {
    null_launch(__builtin_return_address(0)); /* PyTorch launches kernels that it compiles itself here, too */
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    null_launch(__builtin_return_address(0));
    return CUDA_SUCCESS;
}

/* What programs find by name */
int null_driver_function(const char *name, void **function) {
    /* The header declares both `cuMemAlloc` and `cuMemAlloc_v2`; a caller that asks for the first means the newest. */
    static const char *const endings[] = {"_v2", "_v3", "_v4", ""};
    Dl_info own;
    void *library = dladdr((void *)null_driver_function, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : RTLD_DEFAULT;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char whole[256];
        snprintf(whole, sizeof whole, "%s%s", name, endings[i]);
        if ((*function = dlsym(library, whole))) return 0;
    }
    if (null_log_level()) fprintf(stderr, "null GPU: the driver has no function %s\n", name);
    return 1;
}
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    int is_missing = null_driver_function(name, function);
    if (status) *status = is_missing ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
    return is_missing ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
/* Tables of undocumented functions are not served: what needs one is out of reach, on purpose. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
