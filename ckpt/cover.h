#pragma once
/*
 * Who writes what of a checkpoint when not every rank can. Each rank writes its own part, and keeps
 * a copy of one other rank's part of the replicated state: what counts is that the parts together
 * are the whole state, not that every rank has written. Pure.
 */
#include <stdbool.h>
#include <stddef.h>

enum er_spare_state {
    ER_SPARE_NONE,    /* no copy */
    ER_SPARE_KEPT,    /* in memory */
    ER_SPARE_WRITTEN, /* durable, or nothing to write */
    ER_SPARE_FAILED
};

/* One of those that are here. Ranks are those of the beginning. */
struct er_cover_member {
    int rank;
    int code;   /* of its own part; 0: durable */
    bool empty; /* its own part has nothing in it */
    bool sole;  /* its own part holds what nobody else has */
    int spare;  /* whose part it has a copy of; -1 */
    enum er_spare_state spare_state;
};

enum er_cover {
    ER_COVER_WHOLE,   /* everything is durable */
    ER_COVER_GOES_ON, /* when those that are asked to have written their copies */
    ER_COVER_LOST     /* the part of *ret_lost cannot be had */
};

/* Whose part `rank` keeps a copy of: far away, since ranks of one node are neighbours. -1 in a
 * world of one. */
int er_cover_spare(int rank, int size);
/* `size` ranks began, `n` members are here. ret_write[i]: member i is to write its copy now. */
enum er_cover er_cover_judge(const struct er_cover_member *members, size_t n, int size,
                             bool *ret_write, int *ret_lost);
/* Which member has the durable file of `rank`; *ret_spare: as its copy. -1: nobody, or nothing is
 * in it. */
int er_cover_holder(const struct er_cover_member *members, size_t n, int rank, bool *ret_spare);
/* The member that goes on with the manifest: the lowest whose own storage works, else the first. */
size_t er_cover_leader(const struct er_cover_member *members, size_t n);
