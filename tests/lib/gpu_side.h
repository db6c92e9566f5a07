#pragma once
/* Tests that run on the CPU, and once more on GPUs: there with ER_TEST_ENGINE=gpu, on the double of
 * CUDA (tests/fakecuda/). */
#include <stdbool.h>

#include "runtime/device.h"

bool er_test_on_gpu(void);
/* Of a rank: the CPU, or a GPU of its own. */
struct er_device_opts er_test_device(int rank);
/* A step of training, in which the double refuses what waits for the device; nothing on the CPU. */
void er_test_step(bool begins);
