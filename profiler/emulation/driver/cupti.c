/* libcupti, for torch's profiler: a version, and no activity of a card. */
#include <stddef.h>
#include <stdint.h>

enum { NO_MORE_RECORDS = 12 };

int cuptiGetVersion(uint32_t *version) {
    *version = CUDA_VERSION * 10 + 1;
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, void **record) { return NO_MORE_RECORDS; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    *dropped = 0;
    return 0;
}
int cuptiGetResultString(int result, const char **text) {
    *text = "status of the emulated driver";
    return 0;
}
int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
    *name = "callback";
    return 0;
}
