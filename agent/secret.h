#pragma once
/* Which environment variables are not for the eyes of --print-config and --dry-run. Pure. */
#include <stdbool.h>
#include <stddef.h>

#define ER_SECRET_SHOWN "***"

/* Does the name, n bytes, say that its value is a secret: TOKEN, PASSWORD, SECRET, ...? */
bool er_secret_name(const char *name, size_t n);
