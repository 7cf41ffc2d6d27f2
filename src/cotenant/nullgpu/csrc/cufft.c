/* libcufft.so: plans that remember nothing but the work area that they are assumed to need. torch allocates it itself.

   The real cuFFT does not start without a GPU. Sizes are those of `cotenant.tracing.operators.fourier`: none for one
   dimension of a power of 2 up to 32,768, else a copy of the complex data. Signatures follow cufft.h and cufftXt.h;
   every function returns CUFFT_SUCCESS, 0. */
#include "null_gpu.h"

#include <stddef.h>

#define MAX_WITHOUT_WORK_AREA 32768

enum { R_32F, R_64F, R_16F }; /* cudaDataType, library_types.h */
enum { C_32F = 4, C_64F, C_16F };

static int last_plan;

static size_t bytes_of(int complex_type) { return complex_type == C_64F ? 16 : complex_type == C_16F ? 4 : 8; }

int cufftCreate(int *plan) { *plan = __atomic_add_fetch(&last_plan, 1, __ATOMIC_RELAXED); return 0; }
int cufftGetVersion(int *version) { *version = CUDA_MAJOR == 13 ? 12000 : 11000; return 0; }

int cufftXtMakePlanMany(int plan, int rank, long long *lengths, long long *input_embed, long long input_stride,
                        long long input_distance, int input_type, long long *output_embed, long long output_stride,
                        long long output_distance, int output_type, long long batch, size_t *work_bytes,
                        int execution_type) {
    long long last = lengths[rank - 1], count = batch;
    int is_real = input_type <= R_16F || output_type <= R_16F;
    for (int i = 0; i < rank - 1; i++) count *= lengths[i];
    count *= is_real ? last / 2 + 1 : last;
    int is_free = rank == 1 && last <= MAX_WITHOUT_WORK_AREA && !(last & (last - 1));
    *work_bytes = is_free ? 0 : (size_t)count * bytes_of(execution_type);
    return 0;
}
