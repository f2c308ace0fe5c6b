/* Arithmetic of NCCL's types on the host. Floats of 16 bits are computed as floats of 32. */
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

size_t nc_bytes(uint64_t count, int type) { return (size_t)count * (type >= 0 && type < 12 ? widths[type] : 1); }
int nc_is_whole(int type) { return type >= INT8 && type <= UINT64; }

static float widened(uint16_t bits, int type) {
    uint32_t wide;
    float value;
    if (type == BFLOAT16) {
        wide = (uint32_t)bits << 16;
        memcpy(&value, &wide, 4);
        return value;
    }
    uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023, sign = (uint32_t)(bits & 0x8000) << 16;
    if (!exponent) {
        value = (float)mantissa / 16777216.0f; /* 2^-24 */
        return sign ? -value : value;
    }
    wide = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    memcpy(&value, &wide, 4);
    return value;
}

/* To the nearest number, and to the even one of two. */
static uint16_t narrowed(float value, int type) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if (type == BFLOAT16) return value != value ? 0x7fc0 : (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    uint16_t sign = (uint16_t)(wide >> 16 & 0x8000);
    float size = value < 0 ? -value : value;
    if (value != value) return 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 6.103515625e-05f) { /* 2^-14: fixed steps of 2^-24 */
        float steps = size * 16777216.0f;
        uint16_t whole = (uint16_t)steps;
        float rest = steps - (float)whole;
        return sign | (uint16_t)(whole + (rest > 0.5f || (rest == 0.5f && (whole & 1))));
    }
    wide &= 0x7fffffff;
    wide += 0xfff + (wide >> 13 & 1);
    return sign | (uint16_t)((wide >> 13) - (112 << 10));
}

double nc_value(const void *value, int type) {
    switch (type) {
        case FLOAT32: return *(const float *)value;
        case FLOAT64: return *(const double *)value;
        case FLOAT16:
        case BFLOAT16: return widened(*(const uint16_t *)value, type);
        default: return 1;
    }
}

#define COMBINE(Type)                                                                     \
    for (size_t i = 0; i < count; i++) {                                                  \
        Type a = ((Type *)into)[i], b = ((const Type *)with)[i];                          \
        ((Type *)into)[i] = operation == PRODUCT   ? (Type)(a * b)                        \
                            : operation == MAXIMUM ? (a > b ? a : b)                      \
                            : operation == MINIMUM ? (a < b ? a : b)                      \
                                                   : (Type)(a + b);                       \
    }                                                                                     \
    break

static void combine_halves(uint16_t *into, const uint16_t *with, size_t count, int type, int operation) {
    for (size_t i = 0; i < count; i++) {
        float value = widened(into[i], type), other = widened(with[i], type);
        nc_combine(&value, &other, 1, FLOAT32, operation);
        into[i] = narrowed(value, type);
    }
}

void nc_combine(void *into, const void *with, size_t count, int type, int operation) {
    switch (type) {
        case INT8: COMBINE(int8_t);
        case UINT8: COMBINE(uint8_t);
        case INT32: COMBINE(int32_t);
        case UINT32: COMBINE(uint32_t);
        case INT64: COMBINE(int64_t);
        case UINT64: COMBINE(uint64_t);
        case FLOAT32: COMBINE(float);
        case FLOAT64: COMBINE(double);
        case FLOAT16:
        case BFLOAT16: combine_halves(into, with, count, type, operation); break;
        default: break; /* 8 bits: nobody adds them */
    }
}

#define EACH(Type, expression)                       \
    for (size_t i = 0; i < count; i++) {             \
        Type value = ((Type *)values)[i];            \
        ((Type *)values)[i] = (Type)(expression);    \
    }                                                \
    break

void nc_divide(void *values, size_t count, int type, int by) {
    switch (type) {
        case INT8: EACH(int8_t, value / by);
        case UINT8: EACH(uint8_t, value / by);
        case INT32: EACH(int32_t, value / by);
        case UINT32: EACH(uint32_t, value / (uint32_t)by);
        case INT64: EACH(int64_t, value / by);
        case UINT64: EACH(uint64_t, value / (uint64_t)by);
        default: nc_scale(values, count, type, 1.0 / by);
    }
}

void nc_scale(void *values, size_t count, int type, double by) {
    switch (type) {
        case FLOAT32: EACH(float, value * by);
        case FLOAT64: EACH(double, value * by);
        case FLOAT16:
        case BFLOAT16: EACH(uint16_t, narrowed((float)(widened(value, type) * by), type));
        default: break;
    }
}
