/* libnvrtc: sources that torch compiles while it runs. Each compiles, to nothing. */
#include <stddef.h>

int nvrtcVersion(int *major, int *minor) {
    *major = CUDA_VERSION / 1000;
    *minor = CUDA_VERSION / 10 % 100;
    return 0;
}
const char *nvrtcGetErrorString(int error) { return "status of the emulated driver"; }

static int one_byte(size_t *size) {
    *size = 1;
    return 0;
}
static int empty_text(char *text) {
    *text = 0;
    return 0;
}

int nvrtcGetProgramLogSize(void *program, size_t *size) { return one_byte(size); }
int nvrtcGetProgramLog(void *program, char *text) { return empty_text(text); }
int nvrtcGetPTXSize(void *program, size_t *size) { return one_byte(size); }
int nvrtcGetPTX(void *program, char *text) { return empty_text(text); }
int nvrtcGetCUBINSize(void *program, size_t *size) { return one_byte(size); }
int nvrtcGetCUBIN(void *program, char *text) { return empty_text(text); }
int nvrtcGetLoweredName(void *program, const char *name, const char **lowered) {
    *lowered = name;
    return 0;
}
