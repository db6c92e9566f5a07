#include "runtime/spawn_hub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/elastic.h"

#define GENERATION 1

/* A get whose key is not there, or a barrier that not all have reached. */
struct waiting {
    struct er_list node;
    int rank;
    uint32_t seq;
    uint64_t deadline_us;
    bool barrier;
    char name[ER_CTL_KEY_MAX + 1];
};

struct barrier {
    struct er_list node;
    int arrived;
    char name[ER_CTL_KEY_MAX + 1];
};

static void answer(struct er_hub *hub, int rank, uint32_t seq, int status, const char *text)
{
    struct er_ctl_msg reply = {.type = ER_CTL_REPLY, .seq = seq, .status = status};

    if (text)
        er_ctl_str(&reply, text);
    hub->send(hub->user, rank, &reply);
}

static void answer_value(struct er_hub *hub, int rank, uint32_t seq, const void *value, size_t n)
{
    struct er_ctl_msg reply = {.type = ER_CTL_REPLY, .seq = seq};

    er_ctl_bytes(&reply, value, n);
    hub->send(hub->user, rank, &reply);
}

static void release(struct waiting *w)
{
    er_list_remove(&w->node);
    free(w);
}

/* In `deadline_us` at the latest it is answered with 1. */
static void wait_for(struct er_hub *hub, int rank, uint32_t seq, uint64_t deadline_us, bool barrier,
                     const char *name)
{
    struct waiting *w = calloc(1, sizeof(*w));

    if (!w) {
        answer(hub, rank, seq, -ENOMEM, "out of memory");
        return;
    }
    *w = (struct waiting){.rank = rank, .seq = seq, .deadline_us = deadline_us, .barrier = barrier};
    snprintf(w->name, sizeof(w->name), "%s", name);
    er_list_push_back(&hub->waiting, &w->node);
}

/* ---- requests ---- */

static void on_hello(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                     uint64_t now_us)
{
    const uint64_t size = (uint64_t)hub->size, at = (uint64_t)rank;
    const uint64_t nums[] = {at, size, at, size, 0, 1, GENERATION, 0};
    struct er_ctl_msg reply = {.type = ER_CTL_WORLD, .seq = msg->seq};

    for (size_t i = 0; i < sizeof(nums) / sizeof(nums[0]); i++)
        er_ctl_num(&reply, nums[i]);
    er_ctl_str(&reply, hub->job);
    er_ctl_str(&reply, "");
    er_ctl_str(&reply, "");
    er_ctl_str(&reply, hub->checkpoint_dir);
    hub->send(hub->user, rank, &reply);
}

static void on_fine(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                    uint64_t now_us)
{
    answer(hub, rank, msg->seq, 0, NULL);
}

/* Whoever waits for this key, now that it may be there. */
static void tell_waiting(struct er_hub *hub, const char *name)
{
    const void *value;
    size_t n;

    if (er_local_kv_get(&hub->kv, name, &value, &n) != 0)
        return;
    er_list_for_each_safe (node, &hub->waiting) {
        struct waiting *w = ER_LIST_ITEM(node, struct waiting, node);

        if (!w->barrier && strcmp(w->name, name) == 0) {
            answer_value(hub, w->rank, w->seq, value, n);
            release(w);
        }
    }
}

static void on_put(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                   uint64_t now_us)
{
    int rc = er_local_kv_put(&hub->kv, name, msg->str[1].data, msg->str[1].len);

    answer(hub, rank, msg->seq, rc, rc < 0 ? er_error_name(rc) : NULL);
    tell_waiting(hub, name);
}

static void on_get(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                   uint64_t now_us)
{
    const void *value;
    size_t n;

    if (er_local_kv_get(&hub->kv, name, &value, &n) == 0)
        answer_value(hub, rank, msg->seq, value, n);
    else if (msg->num[1] == 0)
        answer(hub, rank, msg->seq, 1, NULL);
    else
        wait_for(hub, rank, msg->seq, er_deadline_in(now_us, msg->num[1]), false, name);
}

static void on_add(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                   uint64_t now_us)
{
    struct er_ctl_msg reply = {.type = ER_CTL_REPLY, .seq = msg->seq};
    struct er_error err = ER_ERROR_INIT;
    int64_t sum;

    reply.status = er_local_kv_add(&hub->kv, name, (int64_t)msg->num[1], &sum, &err);
    if (reply.status == 0)
        er_ctl_num(&reply, (uint64_t)sum);
    else
        er_ctl_str(&reply, err.text);
    hub->send(hub->user, rank, &reply);
    tell_waiting(hub, name);
}

static struct barrier *find_barrier(struct er_hub *hub, const char *name)
{
    struct barrier *b;

    er_list_for_each (node, &hub->barriers) {
        b = ER_LIST_ITEM(node, struct barrier, node);
        if (strcmp(b->name, name) == 0)
            return b;
    }
    b = hub->barriers_n < ER_CTL_BARRIERS_MAX ? calloc(1, sizeof(*b)) : NULL;
    if (!b)
        return NULL;
    snprintf(b->name, sizeof(b->name), "%s", name);
    er_list_push_back(&hub->barriers, &b->node);
    hub->barriers_n++;
    return b;
}

static void on_barrier(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                       uint64_t now_us)
{
    struct barrier *b = find_barrier(hub, name);

    if (!b) {
        answer(hub, rank, msg->seq, ER_E_LIMIT, "too many barriers");
        return;
    }
    if (++b->arrived < hub->size) {
        wait_for(hub, rank, msg->seq, er_deadline_in(now_us, msg->num[1]), true, name);
        return;
    }
    b->arrived = 0;
    er_list_for_each_safe (node, &hub->waiting) {
        struct waiting *w = ER_LIST_ITEM(node, struct waiting, node);

        if (w->barrier && strcmp(w->name, name) == 0) {
            answer(hub, w->rank, w->seq, 0, NULL);
            release(w);
        }
    }
    answer(hub, rank, msg->seq, 0, NULL);
}

static void on_fail(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
                    uint64_t now_us)
{
    struct er_ctl_str text = msg->str[0];

    if (!hub->fail[0]) {
        snprintf(hub->fail, sizeof(hub->fail), "%.*s", (int)text.len, text.data);
        hub->fail_rank = rank;
    }
    answer(hub, rank, msg->seq, 0, NULL);
}

/* `name`: the first string of a request that has one, checked. */
static const struct {
    bool named;
    void (*on)(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, const char *name,
               uint64_t now_us);
} requests[ER_CTL_TYPE_COUNT] = {
    [ER_CTL_HELLO] = {false, on_hello}, [ER_CTL_READY] = {false, on_fine},
    [ER_CTL_KV_PUT] = {true, on_put},   [ER_CTL_KV_GET] = {true, on_get},
    [ER_CTL_KV_ADD] = {true, on_add},   [ER_CTL_BARRIER] = {true, on_barrier},
    [ER_CTL_COMMIT] = {false, on_fine}, [ER_CTL_LOADED] = {false, on_fine},
    [ER_CTL_FAIL] = {false, on_fail},   [ER_CTL_BYE] = {false, on_fine},
};

void er_hub_request(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, uint64_t now_us)
{
    char name[ER_CTL_KEY_MAX + 1] = "";

    if (!requests[msg->type].on)
        answer(hub, rank, msg->seq, -ENOSYS, "unknown request");
    else if (requests[msg->type].named && er_ctl_copy(msg->str[0], name, sizeof(name)) < 0)
        answer(hub, rank, msg->seq, -EINVAL, "bad key");
    else
        requests[msg->type].on(hub, rank, msg, name, now_us);
}

/* ---- life ---- */

void er_hub_init(struct er_hub *hub, int size, const char *job, const char *checkpoint_dir,
                 er_hub_send_fn send, void *user)
{
    *hub = (struct er_hub){
        .size = size, .job = job, .checkpoint_dir = checkpoint_dir, .send = send, .user = user};
    er_local_kv_init(&hub->kv);
    er_list_init(&hub->waiting);
    er_list_init(&hub->barriers);
}

void er_hub_done(struct er_hub *hub)
{
    er_list_for_each_safe (node, &hub->waiting)
        release(ER_LIST_ITEM(node, struct waiting, node));
    er_list_for_each_safe (node, &hub->barriers)
        free(ER_LIST_ITEM(node, struct barrier, node));
    er_local_kv_done(&hub->kv);
}

/* A rank that gives a barrier up has not arrived. */
static void give_up(struct er_hub *hub, struct waiting *w)
{
    if (w->barrier)
        find_barrier(hub, w->name)->arrived--;
    release(w);
}

void er_hub_step(struct er_hub *hub, uint64_t now_us)
{
    er_list_for_each_safe (node, &hub->waiting) {
        struct waiting *w = ER_LIST_ITEM(node, struct waiting, node);

        if (now_us >= w->deadline_us) {
            answer(hub, w->rank, w->seq, 1, NULL);
            give_up(hub, w);
        }
    }
}

uint64_t er_hub_deadline(const struct er_hub *hub)
{
    uint64_t first_us = ER_FOREVER;

    er_list_for_each (node, &hub->waiting) {
        const struct waiting *w = ER_LIST_ITEM(node, struct waiting, node);

        first_us = w->deadline_us < first_us ? w->deadline_us : first_us;
    }
    return first_us;
}

void er_hub_gone(struct er_hub *hub, int rank)
{
    er_list_for_each_safe (node, &hub->waiting) {
        struct waiting *w = ER_LIST_ITEM(node, struct waiting, node);

        if (w->rank == rank)
            give_up(hub, w);
    }
}
