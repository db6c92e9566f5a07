#pragma once
/* A text as bytes: one file, or the plain files of a folder one after another. */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TEXT_DIR "/usr/share/games/fortunes" /* of Debian's packages fortunes and fortunes-min */
#define TEXT_MAX ((size_t)1 << 30)

struct text {
    uint8_t *bytes; /* owned */
    size_t n;
};

/*
 * `path` NULL: TEXT_DIR. Of a folder: regular files without a suffix, in order of their names.
 * -ENOENT and the like name the path, and the Debian package when it is the default one; -EFBIG:
 * more than TEXT_MAX; -EINVAL: nothing in it.
 */
int text_open(struct text *text, const char *path, struct er_error *err);
void text_close(struct text *text);
