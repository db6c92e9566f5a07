/* libFuzzer: the ledger's lines, and what is concluded from them. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ledger.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { LINES = 64 };

static void see_line(const struct er_ledger_entry *e)
{
    char line[ER_LEDGER_LINE_MAX], second[ER_LEDGER_LINE_MAX];
    struct er_ledger_entry again;
    size_t n = er_ledger_format(e, line);

    assert(memchr(e->run, '\0', sizeof(e->run)) && e->kind < ER_LEDGER_KIND_COUNT &&
           e->from < ER_LEDGER_SOURCE_COUNT);
    assert(n > 0 && n < sizeof(line) && line[n - 1] == '\n');
    line[n - 1] = '\0';
    assert(er_ledger_parse(line, &again) == 0);
    assert(er_ledger_format(&again, second) == n && memcmp(line, second, n - 1) == 0);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_ledger_entry entries[LINES];
    struct er_ledger_part parts[LINES];
    struct er_ledger_audit audit;
    char *text = malloc(n + 1), *rest = text, *line;
    size_t found = 0;

    assert(text);
    memcpy(text, data, n);
    text[n] = '\0';
    while (found < LINES && (line = strsep(&rest, "\n"))) {
        if (er_ledger_parse(line, &entries[found]) == 0)
            see_line(&entries[found++]);
    }
    for (int saved = 0; saved < 2; saved++) {
        er_ledger_audit(entries, found, n * (size_t)saved, parts, &audit);
        assert(audit.parts_n <= found && memchr(audit.problem, '\0', sizeof(audit.problem)));
        assert(audit.ok || audit.problem[0]);
    }
    free(text);
    return 0;
}
