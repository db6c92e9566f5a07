#include "agent/config_compare.h"

#include <string.h>

#include "agent/config_internal.h"

static struct er_setting *setting_of(const struct er_config *config, size_t key)
{
    const struct er_origins *origins = config->origins;

    return &origins->settings[key];
}

static bool is_settled_here(const struct er_config *was, const struct er_config *is,
                            const char *path)
{
    if (strcmp(path, "name") == 0)
        return was->name_made_up && is->name_made_up;
    return strcmp(path, "node.id") == 0 &&
           er_config_setting(is, path)->layer <= ER_LAYER_SCHEDULER &&
           er_config_setting(was, path)->layer <= ER_LAYER_SCHEDULER;
}

size_t er_config_compare(const struct er_config *was, const struct er_config *is,
                         struct er_config_change *ret, size_t max)
{
    size_t n = 0;

    for (size_t i = 0; i < er_keys_n; i++) {
        const struct er_setting *a = setting_of(was, i), *b = setting_of(is, i);
        const char *before = a->text ? a->text : "", *after = b->text ? b->text : "";

        if (strcmp(before, after) == 0 || is_settled_here(was, is, er_keys[i].path))
            continue;
        if (n < max)
            ret[n] = (struct er_config_change){&er_keys[i], before, after, b->where};
        n++;
    }
    return n;
}

void er_config_swap(struct er_config *a, struct er_config *b, const struct er_key_info *key)
{
    size_t i = er_key_index(key), n = er_value_size(key->type);
    struct er_setting setting = *setting_of(a, i);
    union er_value value;

    *setting_of(a, i) = *setting_of(b, i);
    *setting_of(b, i) = setting;
    if (key->offset == ER_KEY_NOWHERE)
        return;
    memcpy(&value, (char *)a + key->offset, n);
    memcpy((char *)a + key->offset, (char *)b + key->offset, n);
    memcpy((char *)b + key->offset, &value, n);
}
