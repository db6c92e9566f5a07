#include <criterion/criterion.h>

#include <string.h>

#include "base/pool.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"

enum { EVENTS_MAX = 32, PARAMS_MAX = 6 };

struct net {
    struct er_pool *pool;
    struct er_flat_param table[PARAMS_MAX];
    struct er_flat flat;
    struct er_tape *tape;
    size_t events[EVENTS_MAX]; /* parameters whose hook was called, in order */
    size_t events_n;
};

static void on_leaf(void *user, size_t param)
{
    struct net *net = user;

    cr_assert_lt(net->events_n, (size_t)EVENTS_MAX);
    net->events[net->events_n++] = param;
}

/* Layers of `sizes`: weights at even, biases at odd indices. */
static void open_net(struct net *net, const size_t *sizes, size_t layers, enum er_optim_kind kind)
{
    static const char *const names[PARAMS_MAX] = {"w1", "b1", "w2", "b2", "w3", "b3"};
    struct er_error err = ER_ERROR_INIT;

    memset(net, 0, sizeof(*net));
    cr_assert_eq(er_matmul_setup(&err), 0, "%s", err.text);
    er_flat_init(&net->flat, net->table, PARAMS_MAX, er_optim_state_names(kind),
                 er_optim_states_n(kind));
    for (size_t i = 0; i < layers; i++) {
        struct er_shape w = er_shape_2d(sizes[i + 1], sizes[i]), b = er_shape_1d(sizes[i + 1]);

        cr_assert_eq(er_flat_add(&net->flat, names[2 * i], &w, NULL, &err), 0);
        cr_assert_eq(er_flat_add(&net->flat, names[2 * i + 1], &b, NULL, &err), 0);
    }
    cr_assert_eq(er_pool_new(&net->pool, er_flat_bytes(&net->flat), &err), 0);
    er_flat_bind(&net->flat, er_pool_alloc(net->pool, er_flat_bytes(&net->flat), 64));
    cr_assert_eq(er_tape_new(&net->tape, &net->flat, 0, &err), 0);
    er_tape_hook(net->tape, on_leaf, net);
}

static void close_net(struct net *net)
{
    er_tape_free(net->tape);
    er_pool_free(net->pool);
}

/* The pattern of the reference program that made the golden numbers below. */
static void fill(float *x, size_t n, size_t salt)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)((i * 37 + salt * 53 + 11) % 101) / 101.0 - 0.5);
}

static struct er_tensor *linear(struct net *net, struct er_tensor *x, size_t layer)
{
    struct er_tensor *y = NULL;
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(er_linear(net->tape, x, er_tape_param(net->tape, 2 * layer),
                           er_tape_param(net->tape, 2 * layer + 1), &y, &err),
                 0, "%s", err.text);
    return y;
}

static struct er_tensor *input(struct net *net, size_t rows, size_t cols, const float *data)
{
    struct er_shape shape = er_shape_2d(rows, cols);
    struct er_tensor *x = NULL;

    cr_assert_eq(er_tape_begin(net->tape, NULL), 0);
    cr_assert_eq(er_tape_input(net->tape, "x", &shape, data, &x, NULL), 0);
    return x;
}

static struct er_tensor *cross_entropy(struct net *net, struct er_tensor *z, const int32_t *labels)
{
    struct er_tensor *loss = NULL;

    cr_assert_eq(er_cross_entropy(net->tape, z, labels, NULL, &loss, NULL), 0);
    return loss;
}

static void expect_events(const struct net *net, const size_t *want, size_t n)
{
    cr_assert_eq(net->events_n, n, "%zu calls, want %zu", net->events_n, n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(net->events[i], want[i], "call %zu: parameter %zu, want %zu", i,
                     net->events[i], want[i]);
}

static const int32_t labels[6] = {0, 1, 2, 0, 1, 2};
static float data[6 * 4];

Test(tape, hooks_come_once_each_in_backward_order)
{
    struct net net;
    struct er_tensor *x, *y;

    open_net(&net, (const size_t[]){4, 5, 4, 3}, 3, ER_OPTIM_SGD);
    fill(data, 24, 1);
    for (int step = 0; step < 2; step++) {
        net.events_n = 0;
        x = input(&net, 6, 4, data);
        y = linear(&net, linear(&net, linear(&net, x, 0), 1), 2);
        cr_assert_eq(er_tape_backward(net.tape, cross_entropy(&net, y, labels), NULL), 0);
        expect_events(&net, (const size_t[]){5, 4, 3, 2, 1, 0}, 6);
    }
    close_net(&net);
}

/* An operation that notes when the gradient of each of its inputs is made: 10 + input. */
static struct net *watched;

static int infer_watch(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                       struct er_error *err)
{
    *ret_out = er_shape_1d(1);
    return 0;
}

static void forward_watch(const struct er_node *node)
{
    node->out->value[0] = node->in[0]->value[0] + node->in[1]->value[0];
}

static void backward_watch_0(const struct er_node *node, float beta)
{
    on_leaf(watched, 10);
}

static void backward_watch_1(const struct er_node *node, float beta)
{
    on_leaf(watched, 11);
}

static const struct er_tape_op watch = {.name = "watch",
                                        .inputs_n = 2,
                                        .infer = infer_watch,
                                        .forward = forward_watch,
                                        .backward = {backward_watch_0, backward_watch_1}};

Test(tape, a_hook_comes_before_work_that_does_not_concern_it)
{
    struct net net;
    struct er_tensor *h, *y;

    open_net(&net, (const size_t[]){4, 4, 3}, 2, ER_OPTIM_SGD);
    watched = &net;
    h = linear(&net, input(&net, 6, 4, data), 0);
    cr_assert_eq(er_tape_apply(net.tape, &watch,
                               (struct er_tensor *[]){h, er_tape_param(net.tape, 3)}, NULL, &y,
                               NULL),
                 0);
    cr_assert_eq(er_tape_backward(net.tape, y, NULL), 0);
    expect_events(&net, (const size_t[]){11, 3, 10, 1, 0}, 5);
    close_net(&net);
}

Test(tape, a_parameter_used_twice_is_final_after_its_first_use)
{
    struct net net;
    struct er_tensor *x, *y;

    open_net(&net, (const size_t[]){4, 4, 3}, 2, ER_OPTIM_SGD);
    fill(data, 24, 1);
    fill(net.flat.block[ER_FLAT_VALUE], net.flat.total, 2);
    x = input(&net, 6, 4, data);
    y = linear(&net, linear(&net, linear(&net, x, 0), 0), 1);
    cr_assert_eq(er_tape_backward(net.tape, cross_entropy(&net, y, labels), NULL), 0);
    expect_events(&net, (const size_t[]){3, 2, 1, 0}, 4);
    close_net(&net);
}

/* The gradient of a shared weight is the sum of the gradients of two separate ones. */
Test(tape, gradients_of_shared_parameters_add_up)
{
    struct net shared, apart;
    struct er_tensor *x;
    float *sum, *first, *second;

    open_net(&shared, (const size_t[]){4, 4, 3}, 2, ER_OPTIM_SGD);
    open_net(&apart, (const size_t[]){4, 4, 4, 3}, 3, ER_OPTIM_SGD);
    fill(data, 24, 1);
    for (size_t i = 0; i < 4; i++)
        fill(er_flat_at(&shared.flat, ER_FLAT_VALUE, i), shared.table[i].count, i);
    for (size_t i = 0; i < 6; i++)
        fill(er_flat_at(&apart.flat, ER_FLAT_VALUE, i), apart.table[i].count, i < 2 ? i : i - 2);
    x = input(&shared, 6, 4, data);
    cr_assert_eq(
        er_tape_backward(
            shared.tape,
            cross_entropy(&shared, linear(&shared, linear(&shared, linear(&shared, x, 0), 0), 1),
                          labels),
            NULL),
        0);
    x = input(&apart, 6, 4, data);
    cr_assert_eq(
        er_tape_backward(apart.tape,
                         cross_entropy(&apart,
                                       linear(&apart, linear(&apart, linear(&apart, x, 0), 1), 2),
                                       labels),
                         NULL),
        0);
    sum = er_flat_at(&shared.flat, ER_FLAT_GRAD, 0);
    first = er_flat_at(&apart.flat, ER_FLAT_GRAD, 0);
    second = er_flat_at(&apart.flat, ER_FLAT_GRAD, 2);
    for (size_t i = 0; i < 16; i++)
        cr_assert_float_eq((double)sum[i], (double)(first[i] + second[i]), 1e-5);
    close_net(&shared);
    close_net(&apart);
}

Test(tape, a_branch_beside_the_loss_holds_nothing_back)
{
    struct net net;
    struct er_tensor *x, *h, *y;

    open_net(&net, (const size_t[]){4, 4, 3}, 2, ER_OPTIM_SGD);
    fill(data, 24, 1);
    x = input(&net, 6, 4, data);
    h = linear(&net, x, 0);
    y = cross_entropy(&net, h, labels);
    /* neither use leads to the loss */
    linear(&net, linear(&net, h, 0), 1);
    cr_assert_eq(er_tape_backward(net.tape, y, NULL), 0);
    expect_events(&net, (const size_t[]){1, 0}, 2);
    for (size_t i = 0; i < net.table[2].count; i++)
        cr_assert_eq(er_flat_at(&net.flat, ER_FLAT_GRAD, 2)[i], 0.0f);
    close_net(&net);
}

Test(tape, micro_steps_accumulate_until_cleared)
{
    struct net net;
    struct er_tensor *x;
    float once[16];

    open_net(&net, (const size_t[]){4, 4}, 1, ER_OPTIM_SGD);
    fill(data, 24, 1);
    for (int i = 0; i < 2; i++) {
        x = input(&net, 6, 4, data);
        cr_assert_eq(
            er_tape_backward(net.tape, cross_entropy(&net, linear(&net, x, 0), labels), NULL), 0);
        if (i == 0)
            memcpy(once, er_flat_at(&net.flat, ER_FLAT_GRAD, 0), sizeof(once));
    }
    for (size_t i = 0; i < 16; i++)
        cr_assert_float_eq((double)er_flat_at(&net.flat, ER_FLAT_GRAD, 0)[i], 2 * (double)once[i],
                           1e-6);
    close_net(&net);
}

Test(tape, without_gradients_nothing_is_recorded)
{
    struct net net;
    struct er_tensor *x, *y, *loss;
    struct er_error err = ER_ERROR_INIT;

    open_net(&net, (const size_t[]){4, 4}, 1, ER_OPTIM_SGD);
    fill(data, 24, 1);
    er_tape_grad(net.tape, false);
    x = input(&net, 6, 4, data);
    y = linear(&net, x, 0);
    cr_assert_null(y->grad);
    loss = cross_entropy(&net, y, labels);
    cr_assert_gt(loss->value[0], 0.0f);
    cr_assert_eq(er_tape_backward(net.tape, loss, &err), ER_E_USAGE);
    er_tape_grad(net.tape, true);
    x = input(&net, 6, 4, data);
    cr_assert_eq(er_tape_backward(net.tape, cross_entropy(&net, linear(&net, x, 0), labels), &err),
                 0);
    close_net(&net);
}

Test(tape, wrong_use_of_backward_is_refused)
{
    struct net net;
    struct er_tensor *x, *y, *loss;
    struct er_error err = ER_ERROR_INIT;

    open_net(&net, (const size_t[]){4, 4}, 1, ER_OPTIM_SGD);
    fill(data, 24, 1);
    x = input(&net, 6, 4, data);
    y = linear(&net, x, 0);
    cr_assert_eq(er_tape_backward(net.tape, y, &err), ER_E_USAGE);
    cr_assert_str_eq(err.text, "backward: 'linear' has shape (6, 4), expected (1)");
    cr_assert_eq(er_tape_backward(net.tape, cross_entropy(&net, x, labels), &err), ER_E_USAGE);
    loss = cross_entropy(&net, y, labels);
    cr_assert_eq(er_tape_backward(net.tape, loss, &err), 0);
    cr_assert_eq(er_tape_backward(net.tape, loss, &err), ER_E_USAGE, "twice");
    close_net(&net);
}

/* Three steps of a 4-5-3 network on 6 rows; returns whether a step after the first allocated. */
static bool three_steps(struct net *net, const struct er_optim *optim, double losses[3])
{
    static const size_t sizes[] = {4, 5, 3};
    struct er_optim_view view;
    size_t growths = 0;

    open_net(net, sizes, 2, optim->kind);
    view = er_optim_view_flat(&net->flat);
    for (size_t i = 0; i < 4; i++)
        fill(er_flat_at(&net->flat, ER_FLAT_VALUE, i), net->table[i].count, i + 1);
    for (size_t step = 1; step <= 3; step++) {
        int32_t y[6];
        struct er_tensor *h, *loss;

        fill(data, 24, 10 + step);
        for (size_t i = 0; i < 6; i++)
            y[i] = (int32_t)((i * 2 + step) % 3);
        h = linear(net, input(net, 6, 4, data), 0);
        if (step == 2)
            growths = er_tape_growths(net->tape);
        cr_assert_eq(er_relu(net->tape, h, &h, NULL), 0);
        cr_assert_eq(
            er_cross_entropy(net->tape, linear(net, h, 1), y, &losses[step - 1], &loss, NULL), 0);
        cr_assert_eq(er_tape_backward(net->tape, loss, NULL), 0);
        er_optim_apply(optim, &view, step, 0.1, 1.0 / 6);
    }
    return er_tape_growths(net->tape) != growths;
}

/* Numbers of an independent program in double precision. */
Test(tape, three_steps_of_a_small_network_give_the_golden_numbers)
{
    struct {
        struct er_optim optim;
        double losses[3], weight, bias;
    } golden[] = {
        {er_optim_sgd(),
         {6.806602559677264, 6.813578609979307, 6.81998907107716},
         -0.2970377715143799,
         0.07037633801373329},
        {er_optim_adamw(),
         {6.806602559677264, 6.663555038102433, 6.759705438453442},
         -0.3343190373725837,
         -0.09418567943045233},
    };

    golden[0].optim.weight_decay = 0.01f;
    for (size_t i = 0; i < 2; i++) {
        double losses[3];
        struct net net;

        cr_assert_not(three_steps(&net, &golden[i].optim, losses), "a later step allocated");
        for (size_t step = 0; step < 3; step++)
            cr_assert_float_eq(losses[step], golden[i].losses[step], 3e-6, "step %zu: %.9f",
                               step + 1, losses[step]);
        cr_assert_float_eq((double)er_flat_at(&net.flat, ER_FLAT_VALUE, 0)[7], golden[i].weight,
                           1e-6);
        cr_assert_float_eq((double)er_flat_at(&net.flat, ER_FLAT_VALUE, 3)[1], golden[i].bias,
                           1e-6);
        close_net(&net);
    }
}

Test(tape, two_runs_give_the_same_bits)
{
    struct er_optim optim = er_optim_adamw();
    double losses[2][3];
    struct net net[2];

    for (int i = 0; i < 2; i++)
        three_steps(&net[i], &optim, losses[i]);
    cr_assert_eq(memcmp(losses[0], losses[1], sizeof(losses[0])), 0);
    cr_assert_eq(memcmp(net[0].flat.block[0], net[1].flat.block[0], er_flat_bytes(&net[0].flat)),
                 0);
    close_net(&net[0]);
    close_net(&net[1]);
}
