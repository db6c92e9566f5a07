#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

/* Seed, shape and schedule as one line, so that it means the same when seeds do not any more:
 *
 *   seed=1 n=3 min=1 ... 12000000:FAIL:sealed:member:3:99 ...
 *
 * A fault: microseconds from the beginning, kind, phase, role, victim, amount. */

#define NAME(name, ...) #name,
const char *const sim_fault_names[SIM_FAULT_COUNT] = {SIM_FAULT_KINDS(NAME)};
const char *const sim_phase_names[SIM_PHASE_COUNT] = {SIM_PHASES(NAME)};
const char *const sim_role_names[SIM_ROLE_COUNT] = {SIM_ROLES(NAME)};
#undef NAME

#define BEGUN_US (1000 * ER_US_PER_S)

void sim_print(const struct sim *sim)
{
    printf("seed=%llu", (unsigned long long)sim->seed);
#define PRINT(name, what) printf(" " #name "=%llu", (unsigned long long)sim->shape.name);
    SIM_SHAPE(PRINT)
#undef PRINT
    for (size_t i = 0; i < sim->fault_n; i++) {
        const struct sim_fault *f = &sim->faults[i];

        if (!f->left_out)
            printf(" %llu:%s:%s:%s:%u:%llu", (unsigned long long)(f->at_us - BEGUN_US),
                   sim_fault_names[f->kind], sim_phase_names[f->phase], sim_role_names[f->role],
                   f->victim, (unsigned long long)f->amount);
    }
    printf("\n");
}

/* The name at *at, up to a colon. */
static bool parse_name(char **at, const char *const *names, unsigned n, unsigned *ret)
{
    char *name = *at, *end = strchr(name, ':');

    if (!end)
        return false;
    *end = 0;
    *at = end + 1;
    for (*ret = 0; *ret < n; (*ret)++) {
        if (strcmp(names[*ret], name) == 0)
            return true;
    }
    return false;
}

static bool parse_number(char **at, char end, uint64_t *ret)
{
    char *rest;

    *ret = strtoull(*at, &rest, 10);
    if (rest == *at || *rest != end)
        return false;
    *at = rest + (*rest != 0);
    return true;
}

static bool parse_fault(struct sim *sim, char *word)
{
    struct sim_fault *f = &sim->faults[sim->fault_n];
    unsigned kind, phase, role;
    uint64_t victim;

    if (sim->fault_n == SIM_FAULTS || !parse_number(&word, ':', &f->at_us) ||
        !parse_name(&word, sim_fault_names, SIM_FAULT_COUNT, &kind) ||
        !parse_name(&word, sim_phase_names, SIM_PHASE_COUNT, &phase) ||
        !parse_name(&word, sim_role_names, SIM_ROLE_COUNT, &role) ||
        !parse_number(&word, ':', &victim) || !parse_number(&word, 0, &f->amount))
        return false;
    f->at_us += BEGUN_US;
    f->kind = (enum sim_fault_kind)kind;
    f->phase = (enum sim_phase)phase;
    f->role = (enum sim_role)role;
    f->victim = (unsigned)victim;
    sim->fault_n++;
    return true;
}

static bool parse_field(struct sim *sim, char *word)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"seed", offsetof(struct sim, seed)},
#define FIELD(name, what) {#name, offsetof(struct sim, shape.name)},
                  SIM_SHAPE(FIELD)
#undef FIELD
    };
    char *key = word, *equals = strchr(word, '=');
    uint64_t v;

    *equals = 0;
    word = equals + 1;
    if (!parse_number(&word, 0, &v))
        return false;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(fields[i].name, key) == 0)
            memcpy((char *)sim + fields[i].offset, &v, sizeof(v));
    }
    return true;
}

bool sim_parse(struct sim *sim, const char *line)
{
    char *copy = strdup(line), *save = NULL;
    bool ok = copy != NULL;

    memset(sim->faults, 0, sizeof(sim->faults));
    memset(&sim->shape, 0, sizeof(sim->shape));
    sim->fault_n = 0;
    sim->seed = 0;
    for (char *word = ok ? strtok_r(copy, " \n", &save) : NULL; ok && word;
         word = strtok_r(NULL, " \n", &save))
        ok = strchr(word, '=') ? parse_field(sim, word) : parse_fault(sim, word);
    free(copy);
    return ok && sim->seed && sim->shape.n > 0 && sim->shape.n <= SIM_NODES && sim->shape.max > 0 &&
           sim->shape.min > 0 && sim->shape.spread > 0 && sim->shape.prepare > 0 &&
           sim->shape.depart > 0;
}
