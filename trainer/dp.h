#pragma once
/*
 * Data parallelism in one process: a model on D devices, of which the first one, the primary, has
 * the parameters and the optimizer. On CPU a device is a thread with memory of its own; the
 * primary's is the caller's thread. A step is
 *
 *     replicate    the parameters go to every device
 *     scatter      so do its samples of the batch
 *     apply        each device runs forward and backward on its samples, at the same time
 *     gather       gradients and losses are added up on the primary, in the order of devices
 *
 *     er_dp_open(&dp, &flat, &(struct er_dp_opts){.devices = 4}, err);
 *     er_dp_step(dp, inputs, 2, samples, model, user, &loss, err);
 *     er_optim_apply(&optim, &view, step, lr, 1.0 / loss.weight);
 *
 * The primary sends and receives what all the others do together, and adds up alone, so it is the
 * limit: (D - 1) times the bytes of another device. DDP, a process per device, has no such place:
 * prefer it. Results do not depend on which thread is faster. Source: PyTorch,
 * torch.nn.DataParallel.
 */
#include "trainer/tape.h"
#include "trainer/train.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_DP_DEVICES_MAX 64
#define ER_DP_INPUTS_MAX  4

struct er_dp_opts {
    unsigned devices;   /* 1 to ER_DP_DEVICES_MAX */
    size_t arena_bytes; /* of each tape, as er_tape_new() */
};

/* One array of the batch in the primary's memory, sample after sample. */
struct er_dp_input {
    const void *ptr;
    size_t sample_bytes;
};

/* What one device is to do: samples [first, first + samples) of the batch, at in[] in its own
 * memory (the primary's are the caller's arrays; others are aligned to 64 bytes). */
struct er_dp_part {
    unsigned device;
    struct er_tape *tape; /* of the device's parameters */
    const void *in[ER_DP_INPUTS_MAX];
    size_t first, samples;
};

/* Forward and backward of a part on its tape; adds up gradients, as er_train_ops.grads. Called at
 * the same time by all devices' threads, not for parts without samples. */
typedef int (*er_dp_fn)(void *user, const struct er_dp_part *part, struct er_loss *ret,
                        struct er_error *err);

struct er_dp; /* opaque */

/* `flat` is the primary's: bound, and the caller's for the life of `dp`. The others' values and
 * gradients are memory of theirs. ER_E_USAGE: number of devices; -ENOMEM; -EAGAIN: no thread. */
ER_API int er_dp_open(struct er_dp **ret, const struct er_flat *flat, const struct er_dp_opts *opts,
                      struct er_error *err);
/* NULL is fine. */
ER_API void er_dp_close(struct er_dp *dp);

/* One step over `samples` samples, divided as evenly as they can be. The sums of all gradients are
 * ADDED to those in `flat`. `ret`: sums over the devices. A device's failure, prefixed with its
 * number; the gradients are then undefined, the parameters untouched. */
ER_API int er_dp_step(struct er_dp *dp, const struct er_dp_input *in, size_t inputs_n,
                      size_t samples, er_dp_fn fn, void *user, struct er_loss *ret,
                      struct er_error *err);

/* Since er_dp_open(). */
struct er_dp_use {
    uint64_t bytes;   /* that the device sent and received */
    uint64_t busy_us; /* CPU time of its thread in steps: waiting does not count */
};
/* Between steps. `device` below the number of devices. */
ER_API struct er_dp_use er_dp_use(const struct er_dp *dp, unsigned device);

#ifdef __cplusplus
}
#endif
