#pragma once
/*
 * A file of tokens, mapped: nothing is read before it is used, and ranks of a host share one copy
 * in the page cache. Sample i of length T is tokens [i T, i T + T) and, as labels, those one
 * further on; so a file has (n - 1) / T samples. Files are raw numbers, the lowest byte first
 * (nanoGPT's train.bin), or have llm.c's header. Source of the header: A. Karpathy, llm.c,
 * dev/data/data_common.py.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_TOKENS_NAME_MAX 256

struct er_tokens {
    char name[ER_TOKENS_NAME_MAX]; /* of the file, for errors; the end of it when it is long */
    const uint8_t *data;           /* n tokens of `width` bytes; valid until closed */
    uint64_t n;
    uint32_t width, vocab;
    void *map;
    size_t map_bytes;
};

struct er_tokens_opts {
    uint32_t width; /* bytes of a token: 1, 2 or 4; 0: as llm.c's header says, without one 2 */
    uint32_t vocab; /* tokens are below it; 0: any below 2^31 */
};

/* `opts` NULL: zeros. The file must not become shorter while it is open. -ENOENT and the like;
 * -EINVAL: empty, not whole tokens, a header that does not fit the file; ER_E_USAGE: another width.
 */
int er_tokens_open(struct er_tokens *ret, const char *path, const struct er_tokens_opts *opts,
                   struct er_error *err);
/* Also of zeros. */
void er_tokens_close(struct er_tokens *tokens);
/* Samples of `length` (at least 1) tokens. */
uint64_t er_tokens_samples(const struct er_tokens *tokens, size_t length);
/* Sample `sample` and what follows each of its tokens; `length` of each. -EDOM: a token out of
 * range, says which and where. Any thread. */
int er_tokens_read(const struct er_tokens *tokens, uint64_t sample, size_t length,
                   int32_t *ret_tokens, int32_t *ret_labels, struct er_error *err);

#ifdef __cplusplus
}
#endif
