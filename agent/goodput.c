#include "agent/goodput.h"

const char *er_time_name(enum er_time time)
{
    static const char *const NAMES[] = {
#define TIME(name, text) text,
        ER_TIMES(TIME)
#undef TIME
    };
    return NAMES[time];
}

void er_goodput_init(struct er_goodput *g, uint64_t now_us)
{
    *g = (struct er_goodput){.now = ER_TIME_RENDEZVOUS, .since_us = now_us};
}

void er_goodput_enter(struct er_goodput *g, enum er_time state, uint64_t at_us)
{
    if (at_us < g->since_us)
        at_us = g->since_us;
    g->spent_us[g->now] += at_us - g->since_us;
    g->now = state;
    g->since_us = at_us;
}

uint64_t er_goodput_spent(const struct er_goodput *g, enum er_time state, uint64_t now_us)
{
    uint64_t open_us = state == g->now && now_us > g->since_us ? now_us - g->since_us : 0;

    return g->spent_us[state] + open_us;
}

double er_goodput_ratio(const struct er_goodput *g, uint64_t now_us)
{
    uint64_t all_us = 0;

    for (int i = 0; i < ER_TIME_COUNT; i++) {
        if (i != ER_TIME_IDLE)
            all_us += er_goodput_spent(g, (enum er_time)i, now_us);
    }
    return all_us ? (double)er_goodput_spent(g, ER_TIME_USEFUL, now_us) / (double)all_us : 1;
}
