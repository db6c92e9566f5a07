#pragma once
/* What the writers of agent/docgen*.c share: text into a buffer, the first failure kept. */
#include "agent/docgen.h"
#include "agent/keys.h"

#define ER_DOCGEN_MADE_BY                                                                          \
    "<!-- Written by agent/keys_doc from the tables in agent/: change those. -->\n\n"

struct er_gen {
    struct er_buf *out;
    int rc; /* of the first failure; nothing is written behind it */
};

void er_gen_text(struct er_gen *g, const char *text);
void er_gen_printf(struct er_gen *g, const char *fmt, ...) ER_PRINTF(2, 3);

/* agent/docgen_man.c, docgen_schema.c, docgen_completion.c: rows of er_docs. */
int er_docgen_man_run(struct er_buf *out);
int er_docgen_man_ctl(struct er_buf *out);
int er_docgen_man_job(struct er_buf *out);
int er_docgen_schema(struct er_buf *out);
int er_docgen_bash(struct er_buf *out);
int er_docgen_bash_ctl(struct er_buf *out);
int er_docgen_zsh(struct er_buf *out);
int er_docgen_fish(struct er_buf *out);
int er_docgen_fish_ctl(struct er_buf *out);
int er_docgen_metrics(struct er_buf *out);
