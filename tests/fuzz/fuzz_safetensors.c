/* libFuzzer: headers of safetensors files. The first two bytes say how much longer the file is than
 * what is shown of it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors.h"
#include "ckpt/slices.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

/* What was read can be written, and reads the same. */
static void see_again(const struct er_st_tensor *tensors, size_t tensor_n, uint64_t data_bytes)
{
    struct er_st_tensor *again = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_buf head;
    size_t again_n = 0;
    uint64_t at = 0;

    er_buf_init(&head, ER_ST_HEADER_MAX);
    assert(er_st_format(&head, tensors, tensor_n, "{\"by\":\"fuzz\"}", &err) == 0);
    assert(er_st_parse(head.data, head.len, head.len + data_bytes, &again, &again_n, &at, &err) ==
           0);
    assert(again_n == tensor_n);
    for (size_t i = 0; i < tensor_n; i++)
        assert(!strcmp(again[i].name, tensors[i].name) && again[i].begin == tensors[i].begin);
    free(again);
    er_buf_done(&head);
}

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

        assert(t->ndim >= 1 && t->ndim <= ER_CKPT_DIMS_MAX &&
               memchr(t->name, '\0', sizeof(t->name)));
        assert(t->begin <= t->end && t->end <= n - 2 + more - at);
        assert(t->end - t->begin ==
               er_ckpt_elements(t->ndim, t->shape) * er_ckpt_dtype_size(t->dtype));
    }
    see_again(tensors, tensor_n, n - 2 + more - at);
    free(tensors);
    return 0;
}
