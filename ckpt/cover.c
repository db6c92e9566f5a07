#include "ckpt/cover.h"

int er_cover_spare(int rank, int size)
{
    return size > 1 ? (rank + size / 2) % size : -1;
}

int er_cover_holder(const struct er_cover_member *members, size_t n, int rank, bool *ret_spare)
{
    int copy = -1;

    for (size_t i = 0; i < n; i++) {
        const struct er_cover_member *m = &members[i];

        if (m->rank == rank && m->code == 0 && !m->empty) {
            *ret_spare = false;
            return (int)i;
        }
        if (m->spare == rank && m->spare_state == ER_SPARE_WRITTEN)
            copy = (int)i;
    }
    *ret_spare = copy >= 0;
    return copy;
}

/* The part of `rank` as it stands. */
static enum er_cover judge_part(const struct er_cover_member *members, size_t n, int rank,
                                bool *ret_write)
{
    enum er_cover cover = ER_COVER_LOST;

    for (size_t i = 0; i < n; i++) {
        const struct er_cover_member *m = &members[i];

        if (m->rank == rank && (m->code == 0 || m->empty))
            return ER_COVER_WHOLE;
        if (m->rank == rank && m->sole)
            return ER_COVER_LOST;
    }
    for (size_t i = 0; i < n; i++) {
        const struct er_cover_member *m = &members[i];

        if (m->spare != rank)
            continue;
        if (m->spare_state == ER_SPARE_WRITTEN)
            return ER_COVER_WHOLE;
        if (m->spare_state == ER_SPARE_KEPT && m->code == 0) { /* its storage works */
            ret_write[i] = true;
            cover = ER_COVER_GOES_ON;
        }
    }
    return cover;
}

enum er_cover er_cover_judge(const struct er_cover_member *members, size_t n, int size,
                             bool *ret_write, int *ret_lost)
{
    enum er_cover all = ER_COVER_WHOLE;

    for (size_t i = 0; i < n; i++)
        ret_write[i] = false;
    for (int rank = 0; rank < size; rank++) {
        enum er_cover part = judge_part(members, n, rank, ret_write);

        if (part == ER_COVER_LOST) {
            *ret_lost = rank;
            return part;
        }
        all = part == ER_COVER_GOES_ON ? part : all;
    }
    return all;
}

size_t er_cover_leader(const struct er_cover_member *members, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (members[i].code == 0)
            return i;
    return 0;
}
