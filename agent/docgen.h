#pragma once
/* docs/job-spec.md, docs/cli.md and docs/exit-codes.md, written from the tables. */
#include "base/buf.h"

typedef int (*er_doc_fn)(struct er_buf *out);

struct er_doc {
    const char *name; /* file name in docs/ */
    er_doc_fn write;  /* 0, or what er_buf_add() says */
};

extern const struct er_doc er_docs[];
extern const size_t er_docs_n;
