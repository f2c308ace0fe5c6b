/* libcudnn: every plan exists, and every attribute is 0; so is a plan's workspace, which is not known here. */
#include <stdlib.h>
#include <string.h>

int cudnnCreate(void **handle) {
    *handle = (void *)64;
    return 0;
}
unsigned long cudnnGetVersion(void) { return CUDNN_VERSION; }
unsigned long cudnnGetCudartVersion(void) { return CUDA_VERSION; }
int cudnnGetProperty(int property, int *value) {
    const int parts[3] = {CUDNN_VERSION / 10000, CUDNN_VERSION / 100 % 100, CUDNN_VERSION % 100};
    *value = property >= 0 && property < 3 ? parts[property] : 0;
    return 0;
}
const char *cudnnGetErrorString(int error) { return "status of the emulated driver"; }
void cudnnGetLastErrorString(char *text, unsigned long size) {
    if (size) text[0] = 0;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------------------ */

int cudnnBackendCreateDescriptor(int kind, void **descriptor) {
    *descriptor = calloc(1, 64);
    return 0;
}
int cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return 0;
}

/* Widths of the attribute types, by number; a descriptor (15) is filled by its own calls. */
static size_t width(int type) {
    switch (type) {
        case 2: return 1;                                   /* boolean */
        case 0: case 3: case 5: case 6: return sizeof(long); /* handle, 64 bits, pointer */
        default: return 4;
    }
}

int cudnnBackendGetAttribute(void *descriptor, int name, int type, long wanted, long *count, void *values) {
    if (count) *count = 1;
    if (values && wanted > 0 && type != 15) memset(values, 0, width(type));
    return 0;
}
