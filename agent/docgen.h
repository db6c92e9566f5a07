#pragma once
/* What is written from the tables: pages in docs/, man pages, the JSON Schema, completions. */
#include "base/buf.h"

typedef int (*er_doc_fn)(struct er_buf *out);

struct er_doc {
    const char *name; /* path from the source root */
    er_doc_fn write;  /* 0, or what er_buf_add() says */
};

extern const struct er_doc er_docs[];
extern const size_t er_docs_n;
