/* libFuzzer: files of tokens. The first byte says what is known of them. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/tokens.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { LENGTH = 3 };

static void see(const struct er_tokens *t)
{
    int32_t tokens[LENGTH], labels[LENGTH];
    uint64_t samples = er_tokens_samples(t, LENGTH);

    assert(t->n * t->width <= t->map_bytes);
    for (uint64_t i = 0; i < samples; i += samples / 4 + 1) {
        struct er_error err = ER_ERROR_INIT;
        int rc = er_tokens_read(t, i, LENGTH, tokens, labels, &err);

        assert(rc == 0 || (rc == -EDOM && err.text[0]));
        for (int k = 0; rc == 0 && k < LENGTH; k++)
            assert(tokens[k] >= 0 && labels[k] >= 0 && (k == 0 || tokens[k] == labels[k - 1]));
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_tokens_opts opts;
    struct er_error err = ER_ERROR_INIT;
    struct er_tokens tokens;
    char path[64];
    int fd;

    if (n == 0)
        return 0;
    opts = (struct er_tokens_opts){.width = data[0] & 7u, .vocab = data[0] & 8 ? 300 : 0};
    fd = memfd_create("tokens", 0);
    assert(fd >= 0 && write(fd, data + 1, n - 1) == (ssize_t)(n - 1));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (er_tokens_open(&tokens, path, data[0] & 16 ? NULL : &opts, &err) == 0) {
        see(&tokens);
        er_tokens_close(&tokens);
    } else {
        assert(err.text[0]);
    }
    close(fd);
    assert(er_tokens_open(&tokens, path, NULL, NULL) < 0);
    assert(er_tokens_open(&tokens, "/proc/self", NULL, NULL) == -EINVAL);
    return 0;
}
