/* The GPU that is not there: its properties, and the memory that a process has taken from it.

   This state lives in our libcuda.so.1; our other libraries link to that one, so there is one count per process. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct null_gpu {
    char name[256];
    int compute_major, compute_minor;
    int sm_count;
    int threads_per_sm, blocks_per_sm;
    int shared_bytes_per_sm, shared_bytes_per_block_optin;
    int l2_bytes, memory_bus_bits, sm_clock_khz, memory_clock_khz;
    size_t total_bytes;   /* as cudaMemGetInfo names it */
    size_t context_bytes; /* taken by the context before the first allocation */
    size_t limit_bytes;   /* of all allocations; 0: what the context leaves of total_bytes */
    int device_count;     /* devices that are listed; only the first can be used. 0: one */
};

const struct null_gpu *null_gpu(void);
int null_device_count(void);

/* The UUID of device i: 15 bytes 0x42, then 0x42 + i. No real GPU has it. */
#define NULL_UUID_FORMAT "GPU-42424242-4242-4242-4242-4242424242%02x"
#define NULL_UUID_LAST(device) (0x42 + (device))

/* Value of a cudaDeviceAttr; CUdevice_attribute has the same numbers (cuda.h, driver_types.h). */
int null_attribute(int attribute);

/* Device memory. `null_allocate` gives NULL when the GPU is full. Sizes are rounded as the driver rounds them. `code`: the
   address that the function of CUDA returns to, which says who allocates. */
void *null_allocate(size_t bytes, const void *code);
int null_release(void *address); /* 0, or 1 if nothing begins at `address` */
size_t null_free_bytes(void);

/* Virtual memory: addresses and bytes are taken apart from each other. */
void *null_reserve_addresses(size_t bytes, size_t alignment);
int null_commit(size_t bytes, int is_outside); /* 0, or 1 when the GPU is full */
void null_uncommit(size_t bytes, int is_outside);

/* Memory that is not of PyTorch's caching allocator: the most bytes at a time, and the file that allocated the largest
   piece of it. PyTorch's memory history does not show it. */
int null_is_outside(const void *code);
size_t null_outside_bytes(void);
const char *null_outside_file(void);

/* Managed memory is ordinary memory, which the CPU may read. The most bytes at a time are counted, but not as taken from
   the GPU: the driver moves pages to and fro. */
void *null_manage(size_t bytes);
int null_is_managed(const void *address);
size_t null_managed_bytes(void);

int null_is_device(const void *address);
size_t null_allocation_of(const void *address, void **base); /* its size, 0 if there is none */

/* Pinned host memory is ordinary memory that is remembered. */
void *null_pin_new(size_t bytes);
void null_pin(void *address, size_t bytes);
void null_unpin(void *address, int release);
int null_is_pinned(const void *address);

/* Nothing is computed on the device: what is copied from there is zeros, except what was copied there since the last
   kernel, in small pieces. */
void null_copy(void *to, const void *from, size_t bytes);
int null_known(const void *from, size_t bytes, void *to); /* 1, and copies, if the bytes at `from` are known */

/* What the next copy of `bytes` bytes from the device to this thread gives if they are not known, as the count that an
   operator reads before it allocates its result; at most 64 bytes, 0 for nothing. */
void null_answer(const void *content, size_t bytes);

/* Opaque objects that callers create and destroy: streams, events, modules, descriptors. */
void *null_object(size_t bytes);

/* A kernel, or a call of a library that launches some: what is on the device is no longer known. */
void null_count_launch(void);
unsigned long null_launches(void);

/* The same for a kernel whose host function is at `code`, or that code at `code` launches. Those that are not of PyTorch's
   own libraries are counted: what they write to, PyTorch does not know. */
void null_launch(const void *code);
unsigned long null_foreign_launches(void);

/* What every function does that is not written out: note its name once, and return success. */
long null_stub(const char *name);

/* COTENANT_NULL_GPU_LOG: 0 nothing; 1 stubs that were called, and failures of cuDNN; 2 every allocation, too. */
int null_log_level(void);

/* Find a function of the driver by the name that cuGetProcAddress takes; 0 if found. */
int null_driver_function(const char *name, void **function);
