/* libFuzzer: headers of safetensors files. The first two bytes say how much longer the file is than
 * what is shown of it. */
#include <assert.h>
#include <stdlib.h>

#include "ckpt/safetensors.h"
#include "ckpt/slices.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_st_tensor *tensors = NULL;
    size_t tensor_n = 0;
    uint64_t at = 0, more = n >= 2 ? data[0] | (uint64_t)data[1] << 8 : 0;

    if (n < 2 || er_st_parse(data + 2, n - 2, n - 2 + more, &tensors, &tensor_n, &at, &err) != 0)
        return 0;
    for (size_t i = 0; i < tensor_n; i++) {
        const struct er_st_tensor *t = &tensors[i];

        assert(t->begin <= t->end && t->end <= n - 2 + more - at);
        assert(t->end - t->begin ==
               er_ckpt_elements(t->ndim, t->shape) * er_ckpt_dtype_size(t->dtype));
    }
    free(tensors);
    return 0;
}
