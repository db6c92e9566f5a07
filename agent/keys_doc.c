/* keys_doc SOURCE_ROOT: writes the pages of agent/docgen.h. For developers; not installed. */
#include <stdio.h>

#include "agent/docgen.h"
#include "base/cleanup.h"
#include "base/file.h"

enum { PAGE_MAX = 1 << 20 };

static int write_page(const char *folder, const struct er_doc *doc, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf page;
    char path[4096];
    int rc;

    er_buf_init(&page, PAGE_MAX);
    rc = doc->write(&page);
    if (rc)
        return er_error_set(err, rc, "%s: %s", doc->name, er_error_name(rc));
    snprintf(path, sizeof(path), "%s/%s", folder, doc->name);
    return er_file_replace(path, page.data, page.len, 0644, err);
}

int main(int argc, char **argv)
{
    struct er_error err = ER_ERROR_INIT;

    if (argc != 2) {
        fprintf(stderr, "usage: keys_doc SOURCE_ROOT\n");
        return 64;
    }
    for (size_t i = 0; i < er_docs_n; i++) {
        if (write_page(argv[1], &er_docs[i], &err)) {
            fprintf(stderr, "keys_doc: %s\n", err.text);
            return 1;
        }
    }
    return 0;
}
