/* libcudart: kernels. They are registered and launched, and not run. */
#include <string.h>

#include "emulated.h"
#include "runtime.h"

int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream) {
    em_context(em_device());
    return EM_OK;
}
int __cudaLaunchKernel(void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream) {
    em_context(em_device());
    return EM_OK;
}

/* Offsets in the structure: threads per block 24, registers 28, versions of the code 32 and 36, most shared memory 44. */
int cudaFuncGetAttributes(void *attributes, const void *function) {
    const EmCard *card = em_card();
    int minor = card->major == 7 ? card->minor : 0; /* 7.5 has code of its own; 8.6 and 8.9 run that of 8.0 */
    int version = card->major * 10 + minor;
    struct {
        int threads, registers, code, assembly, unused, shared;
    } found = {1024, 32, version, version, 0, card->shared_per_block};
    memset(attributes, 0, 144);
    memcpy((char *)attributes + 24, &found, sizeof found);
    return EM_OK;
}
int cudaFuncSetAttribute(const void *function, int attribute, int value) { return EM_OK; }

/* How many blocks a kernel fits is known to its compiled code only: two is assumed. */
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    *blocks = 2;
    return EM_OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                           size_t shared, unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

int cudaGetSymbolAddress(void **address, const void *symbol) {
    static char variables[1 << 20];
    *address = variables;
    return EM_OK;
}
int cudaGetFuncBySymbol(void **function, const void *symbol) {
    *function = (void *)symbol;
    return EM_OK;
}
int __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return EM_OK;
}

/* ---- what compiled CUDA code calls when it is loaded, and around <<<>>> ------------------------------------------------------ */

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle[4];
    return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *a, void *b,
                            void *c, void *d, int *e) {}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int a, size_t bytes, int b, int c) {}
char __cudaInitModule(void **handle) { return 0; }

#define MOST_NESTED 16
static __thread struct {
    Dim3 grid, block;
    size_t shared;
    void *stream;
} configurations[MOST_NESTED];
static __thread int nested;

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
    if (nested == MOST_NESTED) return 1;
    configurations[nested].grid = grid;
    configurations[nested].block = block;
    configurations[nested].shared = shared;
    configurations[nested++].stream = stream;
    return 0;
}
int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void *stream) {
    if (!nested) return EM_INVALID_VALUE;
    *grid = configurations[--nested].grid;
    *block = configurations[nested].block;
    *shared = configurations[nested].shared;
    *(void **)stream = configurations[nested].stream;
    return EM_OK;
}
