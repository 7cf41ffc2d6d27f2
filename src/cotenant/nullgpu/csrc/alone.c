/* What libcublasLt needs of our libcuda, for a process that loads cuDNN and no driver. */
#include "null_gpu.h"

#include <stdlib.h>

void *null_object(size_t bytes) { return calloc(1, bytes); }
long null_stub(const char *name) { return 0; }
