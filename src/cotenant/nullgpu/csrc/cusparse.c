/* libcusparse.so: descriptors that remember the sizes of their matrix, and calls that need no buffer.

   The real cuSPARSE does not start without a GPU, and its buffers are documented nowhere but in its own answer: 0 here, as in
   a trace. A product of two sparse matrices is assumed to have as many values as its dense form, at most one for each product
   of two values. Signatures follow cusparse.h; every function returns CUSPARSE_STATUS_SUCCESS, 0. */
#include "null_gpu.h"

#include <stdlib.h>

struct matrix {
    int64_t rows, columns, count;
};

static void *made(void) { return null_object(256); }

int cusparseCreate(void **handle) { *handle = made(); return 0; }
int cusparseDestroy(void *handle) { free(handle); return 0; }
const char *cusparseGetErrorString(int status) { return status ? "error of the null GPU" : "success"; }
const char *cusparseGetErrorName(int status) { return status ? "CUSPARSE_STATUS_UNKNOWN" : "CUSPARSE_STATUS_SUCCESS"; }
int cusparseGetVersion(void *handle, int *version) { *version = 12600; return 0; }

#define OBJECT(create, destroy)                             \
    int create(void **object) { *object = made(); return 0; } \
    int destroy(void *object) { free(object); return 0; }
OBJECT(cusparseCreateMatDescr, cusparseDestroyMatDescr)
OBJECT(cusparseCreateBsrsm2Info, cusparseDestroyBsrsm2Info)
OBJECT(cusparseCreateBsrsv2Info, cusparseDestroyBsrsv2Info)
OBJECT(cusparseSpGEMM_createDescr, cusparseSpGEMM_destroyDescr)
OBJECT(cusparseSpSM_createDescr, cusparseSpSM_destroyDescr)
OBJECT(cusparseSpSV_createDescr, cusparseSpSV_destroyDescr)

static int create_matrix(struct matrix **found, int64_t rows, int64_t columns, int64_t count) {
    *found = null_object(sizeof **found);
    **found = (struct matrix){rows, columns, count};
    return 0;
}
int cusparseCreateCsr(struct matrix **found, int64_t rows, int64_t columns, int64_t count, void *offsets, void *indices, void *values,
                      int offset_type, int index_type, int base, int type) {
    return create_matrix(found, rows, columns, count);
}
int cusparseCreateCoo(struct matrix **found, int64_t rows, int64_t columns, int64_t count, void *row_indices, void *column_indices,
                      void *values, int index_type, int base, int type) {
    return create_matrix(found, rows, columns, count);
}
int cusparseCreateDnMat(struct matrix **found, int64_t rows, int64_t columns, int64_t leading, void *values, int type, int order) {
    return create_matrix(found, rows, columns, rows * columns);
}
int cusparseCreateDnVec(struct matrix **found, int64_t size, void *values, int type) { return create_matrix(found, size, 1, size); }
int cusparseDestroySpMat(void *matrix) { free(matrix); return 0; }
int cusparseDestroyDnMat(void *matrix) { free(matrix); return 0; }
int cusparseDestroyDnVec(void *vector) { free(vector); return 0; }
int cusparseSpMatGetSize(const struct matrix *matrix, int64_t *rows, int64_t *columns, int64_t *count) {
    *rows = matrix->rows;
    *columns = matrix->columns;
    *count = matrix->count;
    return 0;
}

/* Products and solutions */
int cusparseSpMM_bufferSize(void *handle, int a_operation, int b_operation, const void *alpha, void *a, void *b, const void *beta,
                            void *c, int type, int algorithm, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseSpMV_bufferSize(void *handle, int operation, const void *alpha, void *a, void *x, const void *beta, void *y, int type,
                            int algorithm, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseSDDMM_bufferSize(void *handle, int a_operation, int b_operation, const void *alpha, void *a, void *b, const void *beta,
                             void *c, int type, int algorithm, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseSpSM_bufferSize(void *handle, int a_operation, int b_operation, const void *alpha, void *a, void *b, void *c, int type,
                            int algorithm, void *plan, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseSpSV_bufferSize(void *handle, int operation, const void *alpha, void *a, void *x, void *y, int type, int algorithm,
                            void *plan, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseSpGEMM_workEstimation(void *handle, int a_operation, int b_operation, const void *alpha, const struct matrix *a,
                                  const struct matrix *b, const void *beta, struct matrix *c, int type, int algorithm, void *plan,
                                  size_t *bytes, void *buffer) {
    *bytes = 0;
    return 0;
}
int cusparseSpGEMM_compute(void *handle, int a_operation, int b_operation, const void *alpha, const struct matrix *a,
                           const struct matrix *b, const void *beta, struct matrix *c, int type, int algorithm, void *plan,
                           size_t *bytes, void *buffer) {
    double products = b->rows ? (double)a->count * b->count / b->rows : 0, values = (double)a->rows * b->columns;
    c->count = products < values ? products : values;
    *bytes = 0;
    return 0;
}

/* Formats */
int cusparseXcoosort_bufferSizeExt(void *handle, int m, int n, int count, const int *rows, const int *columns, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseXcsrsort_bufferSizeExt(void *handle, int m, int n, int count, const int *offsets, const int *columns, size_t *bytes) {
    *bytes = 0;
    return 0;
}
int cusparseXcsrgeam2Nnz(void *handle, int m, int n, void *a, int a_count, const int *a_offsets, const int *a_columns, void *b,
                         int b_count, const int *b_offsets, const int *b_columns, void *c, int *c_offsets, int *count, void *buffer) {
    *count = a_count + b_count;
    return 0;
}
int cusparseXbsrsm2_zeroPivot(void *handle, void *info, int *position) { *position = -1; return 0; }
int cusparseXbsrsv2_zeroPivot(void *handle, void *info, int *position) { *position = -1; return 0; }

#define OF_TYPE(T)                                                                                                              \
    int cusparse##T##csrgeam2_bufferSizeExt(void *handle, int m, int n, const void *alpha, void *a, int a_count,                \
                                            const void *a_values, const int *a_offsets, const int *a_columns, const void *beta, \
                                            void *b, int b_count, const void *b_values, const int *b_offsets,                   \
                                            const int *b_columns, void *c, const void *c_values, const int *c_offsets,          \
                                            const int *c_columns, size_t *bytes) {                                              \
        *bytes = 0;                                                                                                             \
        return 0;                                                                                                               \
    }                                                                                                                           \
    int cusparse##T##bsrsm2_bufferSize(void *handle, int direction, int a_operation, int x_operation, int rows, int n,          \
                                       int count, void *a, void *values, const int *offsets, const int *columns, int block,     \
                                       void *info, int *bytes) {                                                                \
        *bytes = 0;                                                                                                             \
        return 0;                                                                                                               \
    }                                                                                                                           \
    int cusparse##T##bsrsv2_bufferSize(void *handle, int direction, int operation, int rows, int count, void *a, void *values,  \
                                       const int *offsets, const int *columns, int block, void *info, int *bytes) {             \
        *bytes = 0;                                                                                                             \
        return 0;                                                                                                               \
    }
OF_TYPE(S)
OF_TYPE(D)
OF_TYPE(C)
OF_TYPE(Z)
