#pragma once
/* What the rest of runtime/ may know of a context. */
#include "base/page.h"
#include "runtime/elastic.h"

/* The shared page, or NULL without an agent. Valid for the life of the context. */
struct er_page *er_ctx_page(const struct er_ctx *ctx);
