/* Lines of a run: text, bar, JSON. */
#include <criterion/criterion.h>

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "trainer/train_text.h"

static struct er_train_line a_step(void)
{
    return (struct er_train_line){.event = ER_TRAIN_STEP,
                                  .step = 9,
                                  .total_steps = 20,
                                  .epoch = 1,
                                  .loss = 0.5,
                                  .samples_per_s = 1234.4,
                                  .times = {.comm_us = 10, .exposed_us = 2, .vote_us = 1},
                                  .phases = {.data_us = 3, .communicate_us = 4},
                                  .text = ""};
}

#define EXPECT(call, expected)                                                                     \
    do {                                                                                           \
        struct er_buf text;                                                                        \
        er_buf_init(&text, 65536);                                                                 \
        call;                                                                                      \
        cr_expect_str_eq(er_buf_str(&text), expected);                                             \
        er_buf_done(&text);                                                                        \
    } while (0)

Test(train_text, a_line_of_text)
{
    struct er_train_line line = a_step();

    EXPECT(er_train_text(&line, &text), "step 9/20 epoch 2 loss 0.500000 1234 samples/s");
    line.tokens_per_s = 99;
    EXPECT(er_train_text(&line, &text),
           "step 9/20 epoch 2 loss 0.500000 1234 samples/s 99 tokens/s");
    line.event = ER_TRAIN_STOPPED;
    line.text = "drain";
    EXPECT(er_train_text(&line, &text), "step 9/20 stopped by drain");
}

Test(train_text, the_bar_takes_what_the_figures_leave)
{
    struct er_train_line line = a_step();

    line.eta_us = 3723000000;
    EXPECT(er_train_text_bar(&line, 80, &text),
           "[=========>          ]  45 % step 9/20 loss 0.500000 1234 samples/s ETA 1:02:03");
    EXPECT(er_train_text_bar(&line, 60, &text),
           " 45 % step 9/20 loss 0.500000 1234 samples/s ETA 1:02:03");
    EXPECT(er_train_text_bar(&line, 10, &text), " 45 % ste");
    EXPECT(er_train_text_bar(&line, 0, &text), "");
    line.step = 20;
    line.eta_us = 0;
    EXPECT(er_train_text_bar(&line, 65, &text),
           "[================] 100 % step 20/20 loss 0.500000 1234 samples/s");
}

Test(train_text, no_bar_is_wider_than_its_terminal)
{
    struct er_train_line line = a_step();

    for (size_t columns = 1; columns < 200; columns++) {
        for (line.step = 0; line.step <= line.total_steps; line.step++) {
            struct er_buf text;

            er_buf_init(&text, 65536);
            er_train_text_bar(&line, columns, &text);
            cr_assert_lt(text.len, columns);
            er_buf_done(&text);
        }
    }
}

static json_t *parsed(const struct er_train_line *line)
{
    struct er_buf text;
    json_t *json;

    er_buf_init(&text, 65536);
    er_train_text_json(line, &text);
    cr_assert_null(strchr(er_buf_str(&text), '\n'));
    json = json_loads(er_buf_str(&text), 0, NULL);
    cr_assert_not_null(json, "%s", er_buf_str(&text));
    er_buf_done(&text);
    return json;
}

Test(train_text, json_of_a_step)
{
    struct er_train_line line = a_step();
    json_t *json = parsed(&line);

    cr_expect_str_eq(json_string_value(json_object_get(json, "event")), "step");
    cr_expect_eq(json_integer_value(json_object_get(json, "step")), 9);
    cr_expect_eq(json_integer_value(json_object_get(json, "epoch")), 2);
    cr_expect_eq(json_integer_value(json_object_get(json, "exposed_us")), 2);
    cr_expect_eq(json_integer_value(json_object_get(json, "data_us")), 3);
    cr_expect_eq(json_integer_value(json_object_get(json, "communicate_us")), 4);
    cr_expect_null(json_object_get(json, "tokens_per_s"));
    cr_expect_null(json_object_get(json, "eta_s"));
    cr_expect_null(json_object_get(json, "text"));
    json_decref(json);
    line.loss = NAN;
    line.tokens_per_s = 8;
    line.eta_us = 1500000;
    json = parsed(&line);
    cr_expect(json_is_null(json_object_get(json, "loss")));
    cr_expect_eq(json_number_value(json_object_get(json, "tokens_per_s")), 8);
    cr_expect_eq(json_number_value(json_object_get(json, "eta_s")), 1.5);
    json_decref(json);
}

Test(train_text, json_of_every_event_is_quoted)
{
    for (int event = ER_TRAIN_STEP + 1; event < ER_TRAIN_EVENT_COUNT; event++) {
        struct er_train_line line = a_step();
        json_t *json;

        line.event = (enum er_train_event)event;
        line.text = "a \"quoted\"\nfolder";
        json = parsed(&line);
        cr_expect_str_eq(json_string_value(json_object_get(json, "text")), line.text);
        cr_expect_gt(json_string_length(json_object_get(json, "event")), 0);
        json_decref(json);
    }
}
