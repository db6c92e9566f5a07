/* The world of one: every operation is done when it starts. */
#include <string.h>

#include "runtime/comm_ops.h"

static int open_self(struct er_comm *comm, struct er_error *err)
{
    return 0;
}

static int connect_self(struct er_comm *comm, uint64_t wait_us, struct er_error *err)
{
    return 0;
}

/* Every collective gives back what was brought; messages have nobody to go to and are refused
 * before. */
static void carry_out(const struct er_op *op)
{
    size_t bytes = er_op_bytes(&op->desc);

    if (op->out && op->in != op->out && bytes > 0)
        memmove(op->out, op->in, bytes);
}

static void post_self(struct er_comm *comm, bool async)
{
    struct er_op *first = er_comm_next(comm);

    for (uint32_t i = 0; i < first->batch; i++) {
        const struct er_op *op = er_comm_at(comm, first->number + i);

        if (comm->page)
            atomic_store_explicit(&comm->page->from_worker.collective, op->number,
                                  memory_order_relaxed);
        carry_out(op);
    }
    er_comm_finish(comm, first, 0);
}

static void wait_self(struct er_comm *comm, struct er_op *op, uint64_t deadline_us) {}

static void check_self(struct er_comm *comm) {}

static void close_self(struct er_comm *comm) {}

const struct er_comm_ops er_comm_self_ops = {
    .name = "self",
    .open = open_self,
    .connect = connect_self,
    .post = post_self,
    .wait = wait_self,
    .check = check_self,
    .close = close_self,
};
