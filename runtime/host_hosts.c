#include "runtime/host_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "runtime/host_hosts_internal.h"
#include "runtime/host_tcp.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    DIRECT_MAX = 32,              /* ranks that exchange parts directly over TCP */
    DEPTH_MIN = 4,                /* pieces under way: there and back along the chain */
    PIECE_BYTES = 256 << 10,      /* few hosts: fewer steps */
    SMALL_PIECE_BYTES = 64 << 10, /* many: a shorter way for the first */
    FEW_HOSTS = 4,
    BOTH_US = 50 /* sleep in memory at most so long when sockets are waited for too */
};

/* Each rank is a host of its own when no memory is shared. */
static bool same_host(const struct er_mesh *mesh, int a, int b)
{
    return a == b || (er_mesh_transport(mesh) != ER_TRANSPORT_TCP &&
                      er_mesh_host(mesh, a) == er_mesh_host(mesh, b));
}

/* False: the ranks of some host are not next to each other. */
static bool make_map(struct hosts_map *map, const struct er_mesh *mesh, int rank)
{
    int size = er_mesh_size(mesh), first = 0, prev_first = -1;

    *map = (struct hosts_map){.rails = size, .prev = -1, .next = -1};
    for (int i = 1; i <= size; i++) {
        if (i < size && same_host(mesh, first, i))
            continue;
        for (int j = i; j < size; j++)
            if (same_host(mesh, first, j))
                return false;
        map->rails = i - first < map->rails ? i - first : map->rails;
        if (rank >= first && rank < i) {
            map->host = map->hosts_n;
            map->first = first;
            map->count = i - first;
            map->prev = prev_first < 0 ? -1 : prev_first + rank - first;
        } else if (map->count && map->next < 0) {
            map->next = first + rank - map->first;
        }
        map->hosts_n++;
        prev_first = first;
        first = i;
    }
    if (rank - map->first >= map->rails)
        map->prev = map->next = -1;
    map->depth = (uint32_t)(2 * map->hosts_n + 2);
    map->depth = map->depth < DEPTH_MIN ? DEPTH_MIN : map->depth;
    map->depth = map->depth > HOSTS_DEPTH_MAX ? HOSTS_DEPTH_MAX : map->depth;
    map->piece_bytes = map->hosts_n <= FEW_HOSTS ? PIECE_BYTES : SMALL_PIECE_BYTES;
    return true;
}

bool er_hosts_useful(const struct er_mesh *mesh)
{
    struct hosts_map map;
    int size = er_mesh_size(mesh);

    return make_map(&map, mesh, 0) && map.hosts_n > 1 && (map.hosts_n < size || size > DIRECT_MAX);
}

int er_hosts_count(const struct er_mesh *mesh)
{
    struct hosts_map map;

    return make_map(&map, mesh, 0) ? map.hosts_n : er_mesh_size(mesh);
}

static size_t memory_bytes(const struct hosts_map *map)
{
    return (size_t)map->count * (sizeof(struct hosts_rank) + map->depth * map->piece_bytes);
}

int er_hosts_create(const struct er_mesh *mesh)
{
    struct hosts_map map;

    if (!make_map(&map, mesh, er_mesh_rank(mesh)))
        return er_memfd("elastic-run-comm", 1); /* never mapped */
    return er_memfd("elastic-run-comm", memory_bytes(&map));
}

static void close_hosts(struct er_transport *t)
{
    if (!t)
        return;
    er_host_tcp_ops.close(t->tcp);
    if (t->memory && t->mapped)
        munmap(t->memory, t->memory_bytes);
    else
        free(t->memory);
    free(t->acc);
    free(t->src);
    free(t);
}

ER_CLEANUP_FOR(close_hosts, struct er_transport)

/* Passed by the lowest rank of this host: as long as we expect and unable to shrink. */
static int map_memory(struct er_transport *t, int fd, struct er_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (fstat(fd, &st) < 0 || (size_t)st.st_size != t->memory_bytes || seals < 0 ||
        !(seals & F_SEAL_SHRINK))
        return er_error_set(err, ER_E_PROTOCOL, "the shared segment of rank %d is not as expected",
                            t->map.first);
    t->memory = mmap(NULL, t->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (t->memory == MAP_FAILED) {
        t->memory = NULL;
        return er_error_errno(err, "map the shared segment (%zu bytes)", t->memory_bytes);
    }
    t->mapped = true;
    madvise(t->memory, t->memory_bytes, MADV_POPULATE_WRITE); /* else pages come at first use */
    return 0;
}

static int get_memory(struct er_transport *t, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = er_mesh_take_segment(t->mesh);
    int rc = 0;

    t->memory_bytes = memory_bytes(&t->map);
    if (fd >= 0)
        rc = map_memory(t, fd, err);
    else if (posix_memalign((void **)&t->memory, HOSTS_LINE, t->memory_bytes) == 0)
        __builtin_memset(t->memory, 0, t->memory_bytes);
    if (rc < 0)
        return rc;
    t->acc_bytes = 2 * t->map.piece_bytes; /* a partial result of 16-bit floats is float32 */
    t->acc = malloc(t->map.depth * t->acc_bytes);
    t->src = calloc((size_t)t->map.count, sizeof(*t->src));
    if (!t->memory || !t->acc || !t->src)
        return er_error_set(err, -ENOMEM, "hosts: out of memory");
    t->rank = (struct hosts_rank *)(void *)t->memory;
    t->slots = t->memory + (size_t)t->map.count * sizeof(struct hosts_rank);
    return 0;
}

static int lane_fd(const struct er_transport *t, int peer)
{
    return peer < 0 ? -1 : er_mesh_fd(t->mesh, peer, ER_MESH_DATA);
}

static int open_hosts(struct er_transport **ret, struct er_comm *comm, struct er_mesh *mesh,
                      struct er_error *err)
{
    ER_CLEANUP(close_hosts_cleanup) struct er_transport *t = calloc(1, sizeof(*t));
    int rc;

    if (!t)
        return er_error_set(err, -ENOMEM, "hosts: out of memory");
    t->comm = comm;
    t->mesh = mesh;
    make_map(&t->map, mesh, comm->rank);
    t->prev.fd = lane_fd(t, t->map.prev);
    t->next.fd = lane_fd(t, t->map.next);
    rc = get_memory(t, err);
    if (rc == 0)
        rc = er_host_tcp_ops.open(&t->tcp, comm, mesh, err);
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(t);
    return 0;
}

/* Small ones are one exchange. */
static bool goes_along(const struct er_transport *t, const struct er_op *op)
{
    return op->desc.kind == ER_OP_ALL_REDUCE &&
           er_op_bytes(&op->desc) > ER_SMALL_BYTES / (size_t)t->comm->size;
}

static void begin_hosts(struct er_transport *t, struct er_op *const *ops, int ops_n)
{
    t->op = NULL;
    if (goes_along(t, ops[0]))
        er_chain_begin(t, ops[0]);
    else
        er_host_tcp_ops.begin(t->tcp, ops, ops_n);
}

static int step_hosts(struct er_transport *t, struct er_error *err)
{
    return t->op ? er_chain_step(t, err) : er_host_tcp_ops.step(t->tcp, err);
}

static bool needs_hosts(const struct er_transport *t, int peer)
{
    return t->op ? er_chain_needs(t, peer) : er_host_tcp_ops.needs(t->tcp, peer);
}

static bool broken_hosts(const struct er_transport *t, int peer)
{
    if (!t->op)
        return er_host_tcp_ops.broken(t->tcp, peer);
    return (peer == t->map.prev && t->prev.closed) || (peer == t->map.next && t->next.closed);
}

static const struct er_op *sending_hosts(const struct er_transport *t, int peer)
{
    return er_host_tcp_ops.sending(t->tcp, peer);
}

static const struct er_op *receiving_hosts(const struct er_transport *t, int peer)
{
    return er_host_tcp_ops.receiving(t->tcp, peer);
}

/* Sequentially consistent, as in sleep_in_memory(): either the sleeper sees the counter or we see
 * the sleeper. */
void er_hosts_publish(struct er_transport *t, _Atomic uint32_t *counter, uint32_t value)
{
    atomic_store(counter, value);
    for (int i = 0; i < t->map.count; i++) {
        struct hosts_rank *r = &t->rank[i];

        if (t->map.first + i == t->comm->rank || !atomic_load(&r->asleep))
            continue;
        atomic_fetch_add_explicit(&r->bell, 1, memory_order_release);
        syscall(SYS_futex, &r->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static void sleep_in_memory(struct er_transport *t, uint64_t us)
{
    struct hosts_rank *r = &t->rank[t->comm->rank - t->map.first];
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    uint32_t seen = atomic_load_explicit(&r->bell, memory_order_acquire);

    atomic_store(&r->asleep, 1);
    if (!er_chain_may_step(t))
        syscall(SYS_futex, &r->bell, FUTEX_WAIT, seen, &ts, NULL, 0);
    atomic_store_explicit(&r->asleep, 0, memory_order_relaxed);
}

/* A rank that is alone on its host has only sockets to wait for; one that is no rail only memory.
 */
static void wait_hosts(struct er_transport *t, uint64_t us, bool bulk)
{
    struct pollfd polls[2] = {{.fd = -1}, {.fd = -1}};
    const struct hosts_lane *lanes[2] = {&t->prev, &t->next};
    bool any = false;

    if (!t->op) {
        er_host_tcp_ops.wait(t->tcp, us, bulk);
        return;
    }
    for (int i = 0; i < 2; i++) {
        polls[i].events = er_chain_events(t, lanes[i]);
        polls[i].fd = polls[i].events ? lanes[i]->fd : -1;
        any = any || polls[i].events;
    }
    if (!any)
        sleep_in_memory(t, us);
    else if (t->map.count == 1)
        poll(polls, 2, er_poll_ms(0, us));
    else
        sleep_in_memory(t, us < BOTH_US ? us : BOTH_US);
}

const struct er_transport_ops er_host_hosts_ops = {
    .open = open_hosts,
    .begin = begin_hosts,
    .step = step_hosts,
    .needs = needs_hosts,
    .broken = broken_hosts,
    .sending = sending_hosts,
    .receiving = receiving_hosts,
    .eager_bytes = ER_TCP_EAGER_BYTES,
    .wait = wait_hosts,
    .close = close_hosts,
};
