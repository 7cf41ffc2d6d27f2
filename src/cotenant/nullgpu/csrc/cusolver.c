/* libcusolver.so: factorizations that are not computed, with the work areas that they are assumed to need. torch allocates
   them itself.

   The real cuSOLVER does not start without a GPU, and its work areas are documented nowhere but in its own answer. Sizes are
   those of `cotenant.tracing.operators.matrix_kernels`, which says where they are from: none for routines that LAPACK
   computes in place or does not have. Signatures follow cusolverDn.h; every function returns CUSOLVER_STATUS_SUCCESS, 0. */
#include "null_gpu.h"

#include <stdlib.h>

#define BLOCK_COLUMNS 32 /* of a blocked QR, LDL or tridiagonal reduction (LAPACK, `ilaenv`) */

enum { C_32F = 4, C_64F }; /* cudaDataType, library_types.h; R_32F and R_64F are 0 and 1 */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static size_t bytes_of(int type) { return type == C_64F ? 16 : type == C_32F || type == 1 ? 8 : 4; }

#define NUMBERS_OF_SMALL_MATRIX 65536

/* Numbers of the matrix's own type, with and without vectors */
static int64_t of_eigenvalues(int64_t n) { return 1 + 6 * n + 2 * n * n; } /* syevd */
static int64_t of_singular_values(int64_t m, int64_t n) { /* gesvd */
    return larger(1, larger(3 * smaller(m, n) + larger(m, n), 5 * smaller(m, n)));
}
static int64_t of_columns(int64_t n) { return larger(1, n * BLOCK_COLUMNS); } /* geqrf, orgqr, sytrf */

int cusolverDnCreate(void **handle) { *handle = null_object(256); return 0; }
int cusolverDnDestroy(void *handle) { free(handle); return 0; }
int cusolverDnCreateParams(void **params) { *params = null_object(256); return 0; }
int cusolverDnDestroyParams(void *params) { free(params); return 0; }
int cusolverDnCreateGesvdjInfo(void **info) { *info = null_object(256); return 0; }
int cusolverDnDestroyGesvdjInfo(void *info) { free(info); return 0; }
int cusolverDnCreateSyevjInfo(void **info) { *info = null_object(256); return 0; }
int cusolverDnDestroySyevjInfo(void *info) { free(info); return 0; }

#define OF_TYPE(T, org, orm, syev)                                                                                             \
    int cusolverDn##T##potrf_bufferSize(void *handle, int uplo, int n, void *a, int lda, int *count) { *count = 0; return 0; } \
    int cusolverDn##T##getrf_bufferSize(void *handle, int m, int n, void *a, int lda, int *count) { *count = 0; return 0; }    \
    int cusolverDn##T##geqrf_bufferSize(void *handle, int m, int n, void *a, int lda, int *count) {                            \
        *count = of_columns(n);                                                                                                \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##sytrf_bufferSize(void *handle, int n, void *a, int lda, int *count) {                                   \
        *count = of_columns(n);                                                                                                \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##org##_bufferSize(void *handle, int m, int n, int k, void *a, int lda, void *tau, int *count) {          \
        *count = of_columns(n);                                                                                                \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##orm##_bufferSize(void *handle, int side, int operation, int m, int n, int k, void *a, int lda,          \
                                        void *tau, void *c, int ldc, int *count) {                                             \
        *count = of_columns(side == 0 ? n : m); /* CUBLAS_SIDE_LEFT */                                                         \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##syev##d_bufferSize(void *handle, int job, int uplo, int n, void *a, int lda, void *w, int *count) {     \
        *count = of_eigenvalues(n);                                                                                            \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##syev##j_bufferSize(void *handle, int job, int uplo, int n, void *a, int lda, void *w, int *count,       \
                                          void *info) {                                                                        \
        *count = 0;                                                                                                            \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##syev##jBatched_bufferSize(void *handle, int job, int uplo, int n, void *a, int lda, void *w,            \
                                                 int *count, void *info, int batch) {                                          \
        *count = 0;                                                                                                            \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##gesvd_bufferSize(void *handle, int m, int n, int *count) {                                              \
        *count = of_singular_values(m, n);                                                                                     \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##gesvdj_bufferSize(void *handle, int job, int econ, int m, int n, void *a, int lda, void *s, void *u,    \
                                         int ldu, void *v, int ldv, int *count, void *info) {                                  \
        *count = 0;                                                                                                            \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##gesvdjBatched_bufferSize(void *handle, int job, int m, int n, void *a, int lda, void *s, void *u,       \
                                                int ldu, void *v, int ldv, int *count, void *info, int batch) {                \
        *count = 0;                                                                                                            \
        return 0;                                                                                                              \
    }                                                                                                                          \
    int cusolverDn##T##gesvdaStridedBatched_bufferSize(void *handle, int job, int rank, int m, int n, void *a, int lda,        \
                                                       long long stride_a, void *s, long long stride_s, void *u, int ldu,      \
                                                       long long stride_u, void *v, int ldv, long long stride_v, int *count,   \
                                                       int batch) {                                                            \
        *count = 0;                                                                                                            \
        return 0;                                                                                                              \
    }
OF_TYPE(S, orgqr, ormqr, syev)
OF_TYPE(D, orgqr, ormqr, syev)
OF_TYPE(C, ungqr, unmqr, heev)
OF_TYPE(Z, ungqr, unmqr, heev)

/* The interfaces for all types count bytes, on the device and on the host. */
static int answer(int64_t count, int type, size_t *on_device, size_t *on_host) {
    *on_device = (size_t)count * bytes_of(type);
    *on_host = 0;
    return 0;
}
int cusolverDnXpotrf_bufferSize(void *handle, void *params, int uplo, int64_t n, int type, void *a, int64_t lda, int compute,
                                size_t *on_device, size_t *on_host) {
    return answer(0, type, on_device, on_host);
}
int cusolverDnXgeqrf_bufferSize(void *handle, void *params, int64_t m, int64_t n, int type, void *a, int64_t lda, int tau_type,
                                void *tau, int compute, size_t *on_device, size_t *on_host) {
    return answer(of_columns(n), type, on_device, on_host);
}
int cusolverDnXsytrs_bufferSize(void *handle, int uplo, int64_t n, int64_t columns, int type, void *a, int64_t lda,
                                int64_t *pivots, int b_type, void *b, int64_t ldb, size_t *on_device, size_t *on_host) {
    return answer(0, type, on_device, on_host);
}
int cusolverDnXsyevd_bufferSize(void *handle, void *params, int job, int uplo, int64_t n, int type, void *a, int64_t lda,
                                int w_type, void *w, int compute, size_t *on_device, size_t *on_host) {
    return answer(of_eigenvalues(n), type, on_device, on_host);
}
int cusolverDnXsyevBatched_bufferSize(void *handle, void *params, int job, int uplo, int64_t n, int type, void *a, int64_t lda,
                                      int w_type, void *w, int compute, size_t *on_device, size_t *on_host, int64_t batch) {
    return answer(batch * larger(NUMBERS_OF_SMALL_MATRIX, of_eigenvalues(n)), type, on_device, on_host);
}
int cusolverDnXgeev_bufferSize(void *handle, void *params, int left, int right, int64_t n, int type, void *a, int64_t lda,
                               int w_type, void *w, int left_type, void *left_vectors, int64_t left_ld, int right_type,
                               void *right_vectors, int64_t right_ld, int compute, size_t *on_device, size_t *on_host) {
    return answer(0, type, on_device, on_host);
}
