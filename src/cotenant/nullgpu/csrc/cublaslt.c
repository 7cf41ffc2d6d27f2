/* libcublasLt.so: every product has one algorithm, which needs no workspace (cublasLt.h).

   cuDNN asks this library for 1x1 convolutions with stride 1, twice: with at most 128 MiB of workspace and with none
   (CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, seen with cuDNN 9.20). The real one finds no algorithm without a device, so
   that cuDNN would drop its GEMM engine. What the real one takes of the 128 MiB on a device is not known: 0 here. */
#include "null_gpu.h"

#include <stdlib.h>
#include <string.h>

struct heuristic_result { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

size_t cublasLtGetVersion(void) { return CUDA_MAJOR * 10000 + 101; }
size_t cublasLtGetCudartVersion(void) { return CUDA_MAJOR * 1000; }
int cublasLtGetProperty(int part, int *value) { *value = part == 0 ? CUDA_MAJOR : 1; return 0; } /* libraryPropertyType */
int cublasLtCreate(void **handle) { *handle = null_object(256); return 0; }
int cublasLtDestroy(void *handle) { free(handle); return 0; }
int cublasLtMatmulDescCreate(void **description, int compute, int scale) { *description = null_object(1024); return 0; }
int cublasLtMatmulDescDestroy(void *description) { free(description); return 0; }
int cublasLtMatmulPreferenceCreate(void **preference) { *preference = null_object(1024); return 0; }
int cublasLtMatmulPreferenceDestroy(void *preference) { free(preference); return 0; }
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) { *layout = null_object(1024); return 0; }
int cublasLtMatrixLayoutDestroy(void *layout) { free(layout); return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int wanted,
                                   struct heuristic_result *results, int *found) {
    memset(results, 0, sizeof *results);
    results->waves = 1.0f;
    *found = 1;
    return 0;
}
const char *cublasLtGetStatusName(int status) { return status ? "CUBLAS_STATUS_UNKNOWN" : "CUBLAS_STATUS_SUCCESS"; }
const char *cublasLtGetStatusString(int status) { return status ? "error of the null GPU" : "success"; }
