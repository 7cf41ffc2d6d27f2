/* libcublas.so: handles that remember their settings. torch gives cuBLAS its workspace itself, so products take nothing.
   Signatures follow cublas_v2.h; every function returns CUBLAS_STATUS_SUCCESS, 0. */
#include "null_gpu.h"

#include <stdlib.h>

struct handle {
    void *stream;
    int math_mode, pointer_mode, atomics_mode, sm_count_target;
};

int cublasCreate_v2(struct handle **handle) { *handle = null_object(sizeof **handle); return 0; }
int cublasDestroy_v2(struct handle *handle) { free(handle); return 0; }
int cublasGetVersion_v2(struct handle *handle, int *version) { *version = 130101; return 0; }
int cublasGetProperty(int type, int *value) { *value = type == 0 ? 13 : 1; return 0; }
int cublasSetStream_v2(struct handle *handle, void *stream) { handle->stream = stream; return 0; }
int cublasGetStream_v2(struct handle *handle, void **stream) { *stream = handle->stream; return 0; }
int cublasSetMathMode(struct handle *handle, int mode) { handle->math_mode = mode; return 0; }
int cublasGetMathMode(struct handle *handle, int *mode) { *mode = handle->math_mode; return 0; }
int cublasSetPointerMode_v2(struct handle *handle, int mode) { handle->pointer_mode = mode; return 0; }
int cublasGetPointerMode_v2(struct handle *handle, int *mode) { *mode = handle->pointer_mode; return 0; }
int cublasSetAtomicsMode(struct handle *handle, int mode) { handle->atomics_mode = mode; return 0; }
int cublasGetAtomicsMode(struct handle *handle, int *mode) { *mode = handle->atomics_mode; return 0; }
int cublasSetSmCountTarget(struct handle *handle, int count) { handle->sm_count_target = count; return 0; }
int cublasGetSmCountTarget(struct handle *handle, int *count) { *count = handle->sm_count_target; return 0; }
const char *cublasGetStatusName(int status) { return status ? "CUBLAS_STATUS_UNKNOWN" : "CUBLAS_STATUS_SUCCESS"; }
const char *cublasGetStatusString(int status) { return status ? "error of the null GPU" : "success"; }

/* Batched factorizations report wrong arguments in a number on the host. */
#define OF_TYPE(T)                                                                                                             \
    int cublas##T##geqrfBatched(void *handle, int m, int n, void **a, int lda, void **tau, int *info, int batch) {             \
        null_count_launch();                                                                                                   \
        *info = 0;                                                                                                             \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cublas##T##gelsBatched(void *handle, int operation, int m, int n, int columns, void **a, int lda, void **c, int ldc,   \
                               int *info, int *infos, int batch) {                                                             \
        null_count_launch();                                                                                                   \
        *info = 0;                                                                                                             \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cublas##T##getrsBatched(void *handle, int operation, int n, int columns, void **a, int lda, int *pivots, void **b,     \
                                int ldb, int *info, int batch) {                                                               \
        null_count_launch();                                                                                                   \
        *info = 0;                                                                                                             \
        return 0;                                                                                                              \
    }
OF_TYPE(S)
OF_TYPE(D)
OF_TYPE(C)
OF_TYPE(Z)
