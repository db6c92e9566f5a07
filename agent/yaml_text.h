#pragma once
/* A scalar written so that every YAML 1.1 and 1.2 reader takes it for the same string. */
#include <stdbool.h>

#include "base/buf.h"

/* Plain where that is unmistakable, else (or when `quoted`) in double quotes with escapes. */
int er_yaml_text(struct er_buf *out, const char *text, bool quoted);
