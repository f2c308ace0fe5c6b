/* libcublasLt: every problem has one algorithm, which needs no workspace of its own. */
#include <string.h>

static int some_handle(void **handle) {
    *handle = (void *)64;
    return 0;
}

int cublasLtCreate(void **handle) { return some_handle(handle); }
int cublasLtMatmulDescCreate(void **handle) { return some_handle(handle); }
int cublasLtMatmulPreferenceCreate(void **handle) { return some_handle(handle); }
int cublasLtMatrixLayoutCreate(void **handle) { return some_handle(handle); }
int cublasLtMatrixTransformDescCreate(void **handle) { return some_handle(handle); }

unsigned long cublasLtGetVersion(void) { return CUDA_VERSION * 10; }
const char *cublasLtGetStatusName(int status) { return "CUBLAS_STATUS_EMULATED"; }
const char *cublasLtGetStatusString(int status) { return "status of the emulated driver"; }

/* A result: 64 bytes of the algorithm, then workspace, status, waves, and reserved words. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *problem, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
    memset(results, 0, 96);
    *found = 1;
    return 0;
}
