#pragma once
/* What the lines of a run look like. Pure. Each appends to `text`, without the end of line. */
#include "base/buf.h"
#include "trainer/train.h"

/* "step 100/1175 epoch 1 loss 0.390357 74385 samples/s". */
void er_train_text(const struct er_train_line *line, struct er_buf *text);
/* STEP: "[=====>    ]  45 % step 9/20 loss 0.390357 74385 samples/s ETA 1:02:03", at most `columns`
 * wide: the bar takes what the text leaves; without room for one it is left out, then the text is
 * cut. */
void er_train_text_bar(const struct er_train_line *line, size_t columns, struct er_buf *text);
/* One object: docs/training-lines.md. */
void er_train_text_json(const struct er_train_line *line, struct er_buf *text);
