/* libFuzzer: what an agent, or whoever plays one, answers a worker. The input is a list of packets,
 * each behind two bytes of its length; each gets the number of the request that is waiting, unless
 * its length is odd, so that the fuzzer comes past that. */
#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/page.h"
#include "runtime/elastic.h"
#include "runtime/runtime_internal.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { SEQ_AT = 8, PACKETS = 24, WAIT_US = 1000, SKIPS = 16 };

static void send_all(int fd, const unsigned char *data, size_t n)
{
    unsigned char packet[2048];

    for (uint32_t seq = 1; n >= 2 && seq <= PACKETS; seq++) {
        size_t length = (size_t)data[0] | (size_t)data[1] << 8;

        length = length < n - 2 ? length : n - 2;
        length = length < sizeof(packet) ? length : sizeof(packet);
        memcpy(packet, data + 2, length);
        if (length >= SEQ_AT + 4 && length % 2 == 0)
            memcpy(packet + SEQ_AT, &seq, 4);
        if (send(fd, packet, length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            break;
        data += 2 + length;
        n -= 2 + length;
    }
}

static void ask_everything(struct er_ctx *ctx)
{
    const struct er_commit commit = {.step = 7, .path = "step-7", .digest = "d"};
    struct er_error err = ER_ERROR_INIT;
    char value[16];
    size_t n = 0;
    int64_t sum;
    int rc;

    assert(er_world(ctx)->size >= 0 && er_world(ctx)->job);
    assert(strlen(er_world(ctx)->run) < PATH_MAX && strlen(er_world(ctx)->node_id) < PATH_MAX &&
           strlen(er_world(ctx)->checkpoint_dir) < PATH_MAX);
    assert(er_world(ctx)->skip_steps_n <= SKIPS);
    for (size_t i = 0; i < er_world(ctx)->skip_steps_n; i++)
        assert(er_world(ctx)->skip_steps[i] > 0);
    er_ready(ctx, &err);
    er_kv_put(ctx, "k", "v", 1, &err);
    rc = er_kv_get(ctx, "k", value, sizeof(value), &n, WAIT_US, &err);
    assert(rc != 0 || n <= sizeof(value));
    er_kv_add(ctx, "c", -1, &sum, &err);
    er_barrier(ctx, "b", WAIT_US, &err);
    er_commit(ctx, &commit, &err);
    er_commit_begin(ctx, &commit, &err);
    er_commit_end(ctx, WAIT_US, &err);
    er_loaded(ctx, 7, "step-7", "disk", "", &err);
    for (uint64_t step = 1; step < 20; step++)
        er_progress(ctx, ER_PHASE_FORWARD, step);
    er_progress_figures(ctx, 100, 0.5, 20);
    er_progress_pace(ctx, &(struct er_pace){.samples_per_s = 1});
    er_notice(ctx);
    er_notice_saves(ctx);
    er_rejoin_offer(ctx);
    er_rejoin(ctx, WAIT_US, &err);
    er_fail(ctx, "%s", "no more");
}

/* ---- an agent with a socket, for the way in through the environment ---- */

static char socket_path[64];
static int listen_fd = -1, memory_fd = -1;

static void remove_socket(void)
{
    unlink(socket_path);
}

static void begin_listening(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct er_page *page;
    char text[16];

    if (listen_fd >= 0)
        return;
    snprintf(socket_path, sizeof(socket_path), "/dev/shm/er-fuzz-world-%d", (int)getpid());
    strcpy(at.sun_path, socket_path);
    listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memory_fd = memfd_create("page", 0);
    if (bind(listen_fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(listen_fd, 1) < 0 ||
        ftruncate(memory_fd, ER_PAGE_BYTES) < 0)
        abort();
    atexit(remove_socket);
    page = mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    assert(page != MAP_FAILED);
    page->magic = ER_PAGE_MAGIC;
    page->version = ER_PAGE_VERSION;
    munmap(page, ER_PAGE_BYTES);
    snprintf(text, sizeof(text), "%d", memory_fd);
    setenv("ELASTIC_PAGE_FD", text, 1);
}

struct input {
    const unsigned char *data;
    size_t n;
};

static void *play_agent(void *user)
{
    const struct input *in = user;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    char sink[256];

    assert(fd >= 0);
    send_all(fd, in->data, in->n);
    shutdown(fd, SHUT_WR);
    while (recv(fd, sink, sizeof(sink), 0) > 0)
        ;
    close(fd);
    return NULL;
}

/* By ELASTIC_SOCKET and ELASTIC_PAGE_FD; and then without an agent. */
static void see_opened(const unsigned char *data, size_t n)
{
    struct input in = {data, n};
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    pthread_t thread;

    begin_listening();
    if (pthread_create(&thread, NULL, play_agent, &in))
        abort();
    setenv("ELASTIC_SOCKET", socket_path, 1);
    if (er_open(&ctx, &err) == 0) {
        ask_everything(ctx);
        er_close(ctx);
    }
    pthread_join(thread, NULL);
    unsetenv("ELASTIC_SOCKET");
    setenv("ELASTIC_CHECKPOINT_DIR", "/c", 1);
    if (er_open(&ctx, &err) < 0)
        abort();
    ask_everything(ctx);
    er_close(ctx);
    setenv("ELASTIC_SOCKET", "/nowhere", 1);
    assert(er_open(&ctx, &err) < 0);
}

static void see_adopted(const unsigned char *data, size_t n)
{
    struct er_page *page =
        mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    int end[2], rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end);

    assert(rc == 0 && page != MAP_FAILED);
    page->magic = ER_PAGE_MAGIC;
    page->version = ER_PAGE_VERSION;
    if (n > 0)
        page->to_worker.word = data[0];
    send_all(end[1], data, n);
    shutdown(end[1], SHUT_WR);
    if (er_ctx_adopt(&ctx, end[0], page, &err) == 0) {
        ask_everything(ctx);
        er_close(ctx);
    } else {
        assert(err.text[0]);
    }
    close(end[1]);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    if (n % 4 == 3)
        see_opened(data, n);
    else
        see_adopted(data, n);
    return 0;
}
