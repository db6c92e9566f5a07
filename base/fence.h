#pragma once
/*
 * The newest generation that has begun in a checkpoint folder leaves a file ".fence-g<n>" there.
 * Writers of older ones look for it (ckpt/), and a job that starts with a new record numbers its
 * generations above it (agent/): the disk is authoritative on a cold start.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_FENCE_NAME_MAX 40

void er_fence_name(uint64_t generation, char ret_name[ER_FENCE_NAME_MAX]);
/* Whether a file of this name is a fence, and of which generation. */
bool er_fence_parse(const char *name, uint64_t *ret_generation);
/* 0 in *ret: none has begun. -errno: the folder cannot be read. */
int er_fence_newest(const char *dir, uint64_t *ret, struct er_error *err);
