/* Shared by the files of libcudart. */
#ifndef RUNTIME_H
#define RUNTIME_H

typedef struct {
    unsigned x, y, z;
} Dim3;

int rt_result(int error); /* keep an error for cudaGetLastError, and return it */

#endif
