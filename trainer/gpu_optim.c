/* The optimizers on a GPU: the CPU's steps, bit for bit (trainer/optim.c). */
#include "trainer/gpu_internal.h"

static int apply_sgd(struct er_gpu_engine *gpu, const struct er_optim *o,
                     const struct er_optim_view *view, double lr, double scale,
                     struct er_error *err)
{
    const struct er_kernel_sgd_args a = {.p = view->value,
                                         .m = view->state[0],
                                         .g = view->grad,
                                         .n = view->count,
                                         .scale = (float)scale,
                                         .momentum = o->momentum,
                                         .decay = o->weight_decay,
                                         .rate = (float)lr,
                                         .nesterov = o->nesterov};

    return er_gpu_launch(gpu, ER_KERNEL_momentum_f32, &a, sizeof(a), er_gpu_blocks(a.n), err);
}

int er_gpu_apply(struct er_engine *engine, const struct er_optim *o,
                 const struct er_optim_view *view, uint64_t step, double lr, double scale,
                 struct er_error *err)
{
    struct er_optim_adam adam;
    struct er_kernel_adam_args a;

    if (o->kind == ER_OPTIM_SGD)
        return apply_sgd(er_gpu_of(engine), o, view, lr, scale, err);
    adam = er_optim_adam_of(o, step, lr, scale);
    a = (struct er_kernel_adam_args){.p = view->value,
                                     .m = view->state[0],
                                     .v = view->state[1],
                                     .g = view->grad,
                                     .n = view->count,
                                     .scale = adam.scale,
                                     .beta1 = adam.beta1,
                                     .rest1 = adam.rest1,
                                     .beta2 = adam.beta2,
                                     .rest2 = adam.rest2,
                                     .eps = adam.eps,
                                     .keep = adam.keep,
                                     .rate = adam.rate,
                                     .inverse2 = adam.inverse2,
                                     .decay = adam.decay};
    return er_gpu_launch(er_gpu_of(engine),
                         o->kind == ER_OPTIM_ADAM ? ER_KERNEL_adam_f32 : ER_KERNEL_adamw_f32, &a,
                         sizeof(a), er_gpu_blocks(a.n), err);
}
