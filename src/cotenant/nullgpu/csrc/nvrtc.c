/* libnvrtc.so for a process that only chooses cuDNN's plans: every program compiles at once, to a few zeros (nvrtc.h).

   cuDNN compiles the kernel of a plan when the plan is listed, for depthwise convolutions half a second for each. */
#include "null_gpu.h"

#include <stdlib.h>
#include <string.h>

#define CODE_BYTES 64

int nvrtcVersion(int *major, int *minor) { *major = CUDA_MAJOR; *minor = 0; return 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
    *program = null_object(CODE_BYTES);
    return 0;
}
int nvrtcDestroyProgram(void **program) { free(*program); *program = NULL; return 0; }
int nvrtcGetLoweredName(void *program, const char *expression, const char **lowered) { *lowered = expression; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 0; return 0; }
const char *nvrtcGetErrorString(int status) { return status ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }

#define RESULT(name)                                                                              \
    int nvrtcGet##name##Size(void *program, size_t *bytes) { *bytes = CODE_BYTES; return 0; }     \
    int nvrtcGet##name(void *program, char *code) { memset(code, 0, CODE_BYTES); return 0; }
RESULT(CUBIN)
RESULT(PTX)
RESULT(ProgramLog)
