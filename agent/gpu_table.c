#include "agent/gpu_table.h"

#include <string.h>

static void take_word(const char **at, char *ret, size_t cap)
{
    size_t n = strcspn(*at, " \n"), kept = n < cap ? n : cap - 1;

    memcpy(ret, *at, kept);
    ret[kept] = '\0';
    *at += n;
    *at += **at == ' ';
    if (strcmp(ret, "-") == 0)
        ret[0] = '\0';
}

static bool add_pid(struct er_gpu_table *t, const char *at)
{
    int32_t pid = 0;

    for (; *at >= '0' && *at <= '9' && pid < INT32_MAX / 10; at++)
        pid = 10 * pid + (*at - '0');
    if (t->pids_n < ER_GPU_PIDS_MAX)
        t->pids[t->pids_n++] = pid;
    return *at == '\n';
}

static bool add_line(struct er_gpu_table *t, const char *at)
{
    char word[8];

    take_word(&at, word, sizeof(word));
    if (strcmp(word, "pid") == 0)
        return add_pid(t, at);
    if (strcmp(word, "mig") == 0) {
        if (t->n > 0 && t->migs_n < ER_GPU_MIGS_MAX) {
            take_word(&at, t->migs[t->migs_n].uuid, ER_GPU_UUID_MAX);
            t->migs[t->migs_n++].gpu = (int)t->n - 1;
        }
        return t->n > 0;
    }
    if (strcmp(word, "gpu") == 0 && t->n < ER_GPUS_MAX) {
        take_word(&at, t->gpus[t->n].uuid, ER_GPU_UUID_MAX);
        take_word(&at, t->gpus[t->n].pci, ER_GPU_PCI_MAX);
        t->n++;
    }
    return strcmp(word, "gpu") == 0;
}

int er_gpu_table_parse(struct er_gpu_table *ret, const char *text, struct er_error *err)
{
    memset(ret, 0, sizeof(*ret));
    while (*text) {
        const char *end = strchr(text, '\n');

        if (!end || !add_line(ret, text))
            return er_error_set(err, ER_E_CONFIG, "GPUs: cannot read '%.60s'", text);
        text = end + 1;
    }
    return 0;
}

/* As strtol(3) has it: what follows the digits is not looked at. -1: no number. */
static int leading_number(const char *at, size_t n)
{
    size_t i = 0;
    int number = 0;

    while (i < n && at[i] == ' ')
        i++;
    i += i < n && at[i] == '+';
    if (i == n || at[i] < '0' || at[i] > '9')
        return -1;
    for (; i < n && at[i] >= '0' && at[i] <= '9' && number < ER_GPUS_MAX; i++)
        number = 10 * number + (at[i] - '0');
    return number;
}

/* The one that begins like this; -1: none, or several. */
static int by_uuid(const struct er_gpu_table *t, const char *at, size_t n)
{
    int found = -1;

    for (size_t i = 0; i < t->n; i++) {
        if (strncmp(t->gpus[i].uuid, at, n) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int)i;
    }
    return found;
}

static int mig_by_uuid(const struct er_gpu_table *t, const char *at, size_t n)
{
    for (size_t i = 0; i < t->migs_n; i++) {
        if (strlen(t->migs[i].uuid) == n && strncmp(t->migs[i].uuid, at, n) == 0)
            return (int)i;
    }
    return -1;
}

static int find(const struct er_gpu_table *t, const char *list, const char *at, size_t n)
{
    int number;

    if (strncmp(list, "MIG-", 4) == 0)
        return mig_by_uuid(t, at, n);
    if (strncmp(list, "GPU-", 4) == 0)
        return n >= 4 && strncmp(at, "GPU-", 4) == 0 ? by_uuid(t, at, n) : -1;
    number = leading_number(at, n);
    return number < (int)t->n ? number : -1;
}

static bool knows_uuids(const struct er_gpu_table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (!t->gpus[i].uuid[0])
            return false;
    }
    return true;
}

static void see_all(const struct er_gpu_table *t, struct er_gpu_seen *ret)
{
    ret->n = t->n;
    for (size_t i = 0; i < t->n; i++)
        ret->gpus[i] = (int)i;
}

int er_gpu_table_seen(const struct er_gpu_table *t, const char *list, struct er_gpu_seen *ret,
                      struct er_error *err)
{
    struct er_gpu_seen seen = {.migs = list && strncmp(list, "MIG-", 4) == 0};
    bool taken[ER_GPU_MIGS_MAX] = {false}, more = list && list[0];

    if (!list)
        see_all(t, &seen);
    if (more && (seen.migs || strncmp(list, "GPU-", 4) == 0) && !knows_uuids(t))
        return er_error_set(err, ER_E_CONFIG,
                            "CUDA_VISIBLE_DEVICES='%.60s' names UUIDs, and this host's driver does "
                            "not tell them: use indexes, or give a number of workers",
                            list);
    for (const char *at = list; more;) {
        size_t n = strcspn(at, ",");
        int found = find(t, list, at, n);

        if (found < 0)
            break;
        if (taken[found]) {
            seen.n = 0;
            break;
        }
        taken[found] = true;
        seen.gpus[seen.n++] = seen.migs ? t->migs[found].gpu : found;
        more = at[n] == ',';
        at += n + 1;
    }
    *ret = seen;
    return 0;
}
