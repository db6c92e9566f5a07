#pragma once
/* What the rest of runtime/ may know of a context. */
#include "base/page.h"
#include "runtime/elastic.h"

/* A context whose agent is at the other end of `fd` (taken over, as is the mapped page), already
 * connected: a rank of er_spawn(). As er_open(). */
int er_ctx_adopt(struct er_ctx **ret, int fd, struct er_page *page, struct er_error *err);
/* The shared page, or NULL without an agent. Valid for the life of the context. */
struct er_page *er_ctx_page(const struct er_ctx *ctx);
