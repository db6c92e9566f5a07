#pragma once
/* A node of a job with the usual times, for tests of the rendezvous; who it is, the job's bounds,
 * spec and start are left to the test. */
#include "base/clock.h"
#include "rendezvous/driver.h"

static inline struct er_driver_opts er_test_driver_opts(void)
{
    return (struct er_driver_opts){
        .job = "job",
        .host = "host",
        .prefix = "/elastic-run",
        .address = "10.0.0.1",
        .slots = 2,
        .preferred_rank = -1,
        .restart_max = 3,
        .restart_window_us = 3600 * ER_US_PER_S,
        .backoff_max_us = 60 * ER_US_PER_S,
        .join_timeout_us = 600 * ER_US_PER_S,
        .last_call_us = 30 * ER_US_PER_S,
        .exit_timeout_us = 300 * ER_US_PER_S,
        .lease_ttl_us = 5 * ER_US_PER_S,
        .death_grace_us = ER_US_PER_S,
        .stop_grace_us = 30 * ER_US_PER_S,
    };
}
