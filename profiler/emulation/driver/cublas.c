/* libcublas: handles that work, products that are not computed. Workspaces are torch's own, and real. */
int cublasCreate_v2(void **handle) {
    static long last = 64; /* torch tells workspaces apart by the handle */
    *handle = (void *)(last += 64);
    return 0;
}
int cublasGetMathMode(void *handle, int *mode) {
    *mode = 0;
    return 0;
}
int cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = 0;
    return 0;
}
int cublasGetVersion_v2(void *handle, int *version) {
    *version = CUDA_VERSION * 10;
    return 0;
}
int cublasGetProperty(int property, int *value) {
    *value = property == 0 ? CUDA_VERSION / 1000 : CUDA_VERSION / 10 % 100;
    return 0;
}
const char *cublasGetStatusName(int status) { return "CUBLAS_STATUS_EMULATED"; }
const char *cublasGetStatusString(int status) { return "status of the emulated driver"; }
