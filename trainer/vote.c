#include "trainer/vote.h"

int er_vote_hold(struct er_comm *comm, struct er_vote *vote, const struct er_error *misuse,
                 struct er_error *err)
{
    uint32_t size = (uint32_t)er_comm_size(comm);
    int rc;

    vote->ok = misuse->code == 0;
    rc = er_vote(comm, vote, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "vote of step %lu", (unsigned long)vote->step);
    if (misuse->code)
        return er_error_set(err, misuse->code, "%s", misuse->text);
    if (vote->ok != size)
        return er_error_set(err, ER_E_ABORTED, "step %lu: %u of %u ranks refused it",
                            (unsigned long)vote->step, size - vote->ok, size);
    return 0;
}
