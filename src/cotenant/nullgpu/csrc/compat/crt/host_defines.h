/* Stands in for the header of the same name where the wheels do not bring it (CUDA 13 has it in nvidia-cuda-crt).
   The runtime's headers need these words only; for a C compiler they mean nothing, or alignment. */
#pragma once

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(bytes) __align__(bytes)
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define CUDARTAPI
#define CUDARTAPI_CDECL
