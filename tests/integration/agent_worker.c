/* What a worker may ask for over its control socket and page; what a bad one can do. This program
 * is the worker too: `agent_worker --worker NAME` runs the part NAME of a case. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "base/ctl.h"
#include "base/page.h"
#include "tests/integration/agent_case.h"

static char self[ER_TEST_PATH_MAX];

/* ---- the worker's side ---- */

#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "worker: line %d: not true: %s\n", __LINE__, #cond);                   \
            exit(99);                                                                              \
        }                                                                                          \
    } while (0)

static int env_int(const char *name)
{
    const char *text = getenv(name);

    MUST(text != NULL);
    return atoi(text);
}

static uint64_t generation(void)
{
    return (uint64_t)env_int("ELASTIC_GENERATION");
}

static int dial(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    MUST(getenv("ELASTIC_SOCKET") != NULL);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", getenv("ELASTIC_SOCKET"));
    MUST(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    return fd;
}

static char packet[ER_CTL_PACKET_MAX];

static void ask(int fd, struct er_ctl_msg *m)
{
    int n = er_ctl_encode(m, packet, sizeof(packet));

    MUST(n > 0);
    MUST(send(fd, packet, (size_t)n, MSG_NOSIGNAL) == n);
}

/* 0: the agent has closed the connection. Strings live until the next call. */
static int hear(int fd, struct er_ctl_msg *ret)
{
    static char answer[ER_CTL_PACKET_MAX];
    ssize_t n = recv(fd, answer, sizeof(answer), 0);

    if (n <= 0)
        return 0;
    MUST(er_ctl_decode(ret, answer, (size_t)n, NULL) == 0);
    return 1;
}

static int call(int fd, struct er_ctl_msg *m, struct er_ctl_msg *ret)
{
    static uint32_t seq;

    m->seq = ++seq;
    ask(fd, m);
    MUST(hear(fd, ret));
    MUST(ret->seq == m->seq);
    return ret->status;
}

static int hello(int fd, struct er_ctl_msg *world)
{
    struct er_ctl_msg m = {.type = ER_CTL_HELLO};

    er_ctl_num(&m, ER_CTL_PROTOCOL);
    er_ctl_num(&m, (uint64_t)getpid());
    return call(fd, &m, world);
}

static int put(int fd, uint64_t g, const char *key, const char *value)
{
    struct er_ctl_msg m = {.type = ER_CTL_KV_PUT}, r;

    er_ctl_num(&m, g);
    er_ctl_str(&m, key);
    er_ctl_str(&m, value);
    return call(fd, &m, &r);
}

static int get(int fd, const char *key, uint64_t timeout_us, char *value, size_t cap)
{
    struct er_ctl_msg m = {.type = ER_CTL_KV_GET}, r;
    int status;

    er_ctl_num(&m, generation());
    er_ctl_num(&m, timeout_us);
    er_ctl_str(&m, key);
    status = call(fd, &m, &r);
    if (status == 0)
        MUST(r.str_n == 1 && er_ctl_copy(r.str[0], value, cap) >= 0);
    return status;
}

static int barrier(int fd, const char *name, uint64_t timeout_us)
{
    struct er_ctl_msg m = {.type = ER_CTL_BARRIER}, r;

    er_ctl_num(&m, generation());
    er_ctl_num(&m, timeout_us);
    er_ctl_str(&m, name);
    return call(fd, &m, &r);
}

static int64_t add(int fd, const char *key, int64_t delta)
{
    struct er_ctl_msg m = {.type = ER_CTL_KV_ADD}, r;

    er_ctl_num(&m, generation());
    er_ctl_num(&m, (uint64_t)delta);
    er_ctl_str(&m, key);
    MUST(call(fd, &m, &r) == 0 && r.num_n == 1);
    return (int64_t)r.num[0];
}

static struct er_page *map_page(void)
{
    struct er_page *page = mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                                env_int("ELASTIC_PAGE_FD"), 0);

    MUST(page != MAP_FAILED);
    MUST(page->magic == ER_PAGE_MAGIC && page->version == ER_PAGE_VERSION);
    return page;
}

static void worker_world(void)
{
    struct er_ctl_msg w;
    int fd = dial();

    MUST(hello(fd, &w) == 0 && w.type == ER_CTL_WORLD && w.num_n >= 8 && w.str_n >= 4);
    MUST((int)w.num[0] == env_int("RANK") && (int)w.num[1] == env_int("WORLD_SIZE"));
    MUST((int)w.num[2] == env_int("LOCAL_RANK") && (int)w.num[3] == env_int("LOCAL_WORLD_SIZE"));
    MUST(w.num[6] == generation());
    MUST(w.str[1].len == 32 && memcmp(w.str[1].data, getenv("ELASTIC_RUN"), 32) == 0);
    MUST(map_page()->to_worker.word == generation() << 8);
}

static void worker_kv(void)
{
    struct er_ctl_msg w;
    char value[64], name[ER_CTL_KEY_MAX + 1];
    int fd = dial(), size = env_int("WORLD_SIZE"), rank = env_int("RANK");

    MUST(hello(fd, &w) == 0);
    memset(name, 'k', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    MUST(get(fd, "nothing", 0, value, sizeof(value)) == 1);
    MUST(get(fd, "nothing", 1000, value, sizeof(value)) == 1);
    if (rank == 1)
        MUST(put(fd, generation(), "a/b", "hello") == 0 &&
             put(fd, generation(), name, "long") == 0);
    MUST(get(fd, "a/b", UINT64_MAX, value, sizeof(value)) == 0 && strcmp(value, "hello") == 0);
    MUST(get(fd, name, UINT64_MAX, value, sizeof(value)) == 0 && strcmp(value, "long") == 0);
    MUST(put(fd, generation() + 1, "x", "y") == ER_E_STALE);
    MUST(put(fd, generation(), "", "y") == -EINVAL);
    for (int i = 0; i < 10; i++)
        add(fd, "sum", 1);
    for (int i = 0; i < 20; i++) {
        add(fd, "rounds", 1);
        MUST(barrier(fd, "round", UINT64_MAX) == 0);
        MUST(add(fd, "rounds", 0) >= (i + 1) * size);
        MUST(barrier(fd, "seen", UINT64_MAX) == 0);
    }
    MUST(add(fd, "sum", 0) == 10 * size);
    if (rank == 0)
        MUST(barrier(fd, "alone", 1000) == -ETIMEDOUT);
}

static void worker_says_why(void)
{
    struct er_ctl_msg m = {.type = ER_CTL_FAIL}, r;
    int fd = dial();

    MUST(hello(fd, &r) == 0);
    er_ctl_num(&m, generation());
    er_ctl_str(&m, "the data set is empty");
    MUST(call(fd, &m, &r) == 0);
    exit(3);
}

/* Whatever is sent, the agent answers or hangs up; then a decent worker finds it alive. */
static void worker_garbage(void)
{
    struct er_ctl_msg m = {.type = ER_CTL_HELLO}, r;
    char bytes[4096];
    int fd;

    for (unsigned i = 0; i < 200; i++) {
        fd = dial();
        for (size_t k = 0; k < sizeof(bytes); k++)
            bytes[k] = (char)(k * 31 + i * 17);
        send(fd, bytes, 1 + i * 20, MSG_NOSIGNAL);
        if (i % 2)
            while (hear(fd, &r))
                MUST(r.status == ER_E_PROTOCOL && r.seq == 0); /* nothing made up */
        close(fd);
    }
    fd = dial();
    er_ctl_num(&m, 77);
    er_ctl_num(&m, 1);
    MUST(call(fd, &m, &r) == ER_E_PROTOCOL);
    MUST(hello(fd, &r) == 0);
}

/* One worker cannot grow the agent without end; what it has may be overwritten for ever. */
static void worker_fills_the_store(void)
{
    static char value[ER_CTL_VALUE_MAX];
    struct er_ctl_msg w;
    char key[32];
    int fd = dial(), rc = 0, n = 0;

    MUST(hello(fd, &w) == 0);
    memset(value, 'v', sizeof(value) - 1);
    for (; rc == 0 && n < 10000; n++) {
        snprintf(key, sizeof(key), "key-%d", n);
        rc = put(fd, generation(), key, value);
    }
    MUST(rc == ER_E_LIMIT && n > 10);
    for (int i = 0; i < 200; i++)
        MUST(put(fd, generation(), "key-0", value) == 0);
}

/* Sends until the agent takes no more, never reads; more connections than anybody needs. */
static void worker_flood(void)
{
    struct er_ctl_msg m = {.type = ER_CTL_KV_GET, .seq = 1}, r;
    int fds[300], fd = dial(), n;

    er_ctl_num(&m, generation());
    er_ctl_num(&m, 0);
    er_ctl_str(&m, "nothing");
    n = er_ctl_encode(&m, packet, sizeof(packet));
    for (unsigned i = 0; i < 100000 && send(fd, packet, (size_t)n, MSG_DONTWAIT) == n; i++)
        ;
    MUST(errno == EAGAIN);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        fds[i] = dial();
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        close(fds[i]);
    for (int tries = 0;; tries++) { /* until the agent has seen that they are closed */
        struct er_ctl_msg hello_msg = {.type = ER_CTL_HELLO, .seq = 1};

        MUST(tries < 10000);
        fd = dial();
        er_ctl_num(&hello_msg, ER_CTL_PROTOCOL);
        er_ctl_num(&hello_msg, 1);
        n = er_ctl_encode(&hello_msg, packet, sizeof(packet));
        if (send(fd, packet, (size_t)n, MSG_NOSIGNAL) == n && hear(fd, &r))
            return;
        close(fd);
    }
}

static void worker_closes_everything(void)
{
    for (int i = 0; i < 64; i++)
        close(i);
    usleep(100 * 1000);
    exit(0);
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Step 10 in the first generation, then a death; loads step 8 and goes on in the second. */
static void worker_recovers(void)
{
    struct er_page_progress *p = &map_page()->from_worker;
    struct er_ctl_msg m = {.type = ER_CTL_LOADED}, r;
    bool first = env_int("TORCHELASTIC_RESTART_COUNT") == 0;
    int fd = dial();

    MUST(hello(fd, &r) == 0);
    if (!first) {
        p->connected_us = now_us();
        er_ctl_num(&m, generation());
        er_ctl_num(&m, 8);
        er_ctl_str(&m, "/ckpt/step-8");
        er_ctl_str(&m, "disk");
        er_ctl_str(&m, "not json");
        MUST(call(fd, &m, &r) == 0);
    }
    if (first) {
        p->steps_by_time[5] = 10;
        p->steps_time_us = 300000;
    }
    p->first_step = first ? 1 : 9;
    p->first_step_us = now_us();
    p->step = first ? 10 : 9;
    MUST(barrier(fd, "stepped", UINT64_MAX) == 0);
    if (first && env_int("RANK") == 1)
        raise(SIGKILL);
    while (first)
        pause();
}

static void worker_notice(void)
{
    struct er_page *page = map_page();

    signal(SIGTERM, SIG_IGN);
    printf("up\n");
    fflush(stdout);
    while ((page->to_worker.word & 0xff) == 0)
        usleep(1000);
    printf("notice %d\n", (int)(page->to_worker.word & 0xff));
    exit(0);
}

/* Over the connection that its parent, rank 0, has left open. */
static void speak_for_the_dead(int fd, pid_t parent)
{
    struct er_ctl_msg m = {.type = ER_CTL_LEFT, .seq = 1000}, r;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    bool refused = false;

    MUST(setsid() > 0);
    while (kill(parent, 0) == 0) /* till the agent has reaped it */
        usleep(1000);
    er_ctl_num(&m, generation());
    ask(fd, &m);
    if (poll(&p, 1, 20000) == 1 && hear(fd, &r))
        refused = r.seq == 1000 && r.status == ER_E_STALE;
    MUST(put(fd, generation(), "left", refused ? "refused" : "owed") == 0);
}

static void worker_dies_before_its_child(void)
{
    pid_t parent = getpid();
    struct er_ctl_msg w;
    char value[16];
    int fd = dial();

    MUST(hello(fd, &w) == 0);
    if (env_int("RANK") == 1) {
        MUST(get(fd, "left", UINT64_MAX, value, sizeof(value)) == 0);
        MUST(strcmp(value, "refused") == 0);
    } else if (fork() == 0) {
        speak_for_the_dead(fd, parent);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} WORKERS[] = {
    {"world", worker_world},
    {"kv", worker_kv},
    {"says_why", worker_says_why},
    {"fills", worker_fills_the_store},
    {"garbage", worker_garbage},
    {"flood", worker_flood},
    {"closes", worker_closes_everything},
    {"recovers", worker_recovers},
    {"notice", worker_notice},
    {"dies_first", worker_dies_before_its_child},
};

static int be_worker(const char *name)
{
    for (size_t i = 0; i < sizeof(WORKERS) / sizeof(WORKERS[0]); i++) {
        if (strcmp(WORKERS[i].name, name) == 0) {
            WORKERS[i].run();
            return 0;
        }
    }
    return 98;
}

/* ---- the cases ---- */

static void run_workers(const char *n, const char *worker, int code, const char *in_summary)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", n, self, "--worker", worker)) == code);
    er_tap_check(strstr(er_test_err(&c.p), in_summary) != NULL);
    case_note(er_test_err(&c.p));
    case_end(&c);
}

static void worker_learns_its_world(void)
{
    run_workers("3", "world", 0, "");
}

static void keys_and_barriers_work(void)
{
    run_workers("4", "kv", 0, "");
}

static void worker_names_the_cause(void)
{
    run_workers("2", "says_why", 3, "message     the data set is empty");
}

static void garbage_ends_its_connection_only(void)
{
    run_workers("1", "garbage", 0, "");
}

static void flood_holds_up_only_itself(void)
{
    run_workers("1", "flood", 0, "");
}

static void worker_may_close_its_descriptors(void)
{
    run_workers("2", "closes", 0, "");
}

static void stop_is_told_in_the_page(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "1000", self, "--worker", "notice"));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(strstr(er_test_out(&c.p), "notice 4") != NULL);
    case_end(&c);
}

static json_t *find_event(const struct agent_case *c, const char *name)
{
    char file[400], host[200] = "";
    json_t *found = NULL;

    gethostname(host, sizeof(host) - 1);
    snprintf(file, sizeof(file), "logs/%s/events-%s.jsonl", c->name, host);
    char *text = er_test_read_file(case_path(c, file)), *rest = text;

    for (char *line; rest && !found && (line = strsep(&rest, "\n")) && line[0];) {
        json_t *event = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(event, "event"));

        if (kind && strcmp(kind, name) == 0)
            found = json_incref(event);
        json_decref(event);
    }
    free(text);
    return found;
}

static double field(const json_t *event, const char *name)
{
    const json_t *value = json_object_get(event, name);

    er_tap_check(json_is_number(value));
    return json_number_value(value);
}

static void recovery_is_timed_to_the_first_step(void)
{
    struct agent_case c = {0};
    char text[ER_TEST_PATH_MAX + 128], command[ER_TEST_PATH_MAX + 64];

    case_begin(&c);
    snprintf(command, sizeof(command), "[\"%s\", --worker, recovers]", self);
    snprintf(text, sizeof(text), "nproc_per_node: 2\nlog: {dir: %s/logs}\n", c.dir);
    er_tap_check(case_run_job(&c, case_job(&c, command, text)) == 0);
    case_note(er_test_err(&c.p));
    json_t *e = find_event(&c, "recovered"), *loaded = find_event(&c, "checkpoint_loaded");

    er_tap_require(e && loaded);
    er_tap_check((int)field(e, "steps_lost") == 2 && (int)field(e, "resumed_step") == 8);
    er_tap_check(field(e, "total_ms") > 0 && field(e, "total_ms") < 20000);
    er_tap_check(field(e, "first_step_mono_us") > 0);
    for (size_t i = 0; i < 5; i++)
        field(e, (const char *const[]){"detect_ms", "stop_ms", "rendezvous_ms", "start_ms",
                                       "restore_ms"}[i]);
    er_tap_check(field(e, "comm_init_ms") > 0);
    er_tap_check((int)field(e, "replay_ms") == 60); /* two steps at 30 ms */
    er_tap_check(json_is_array(json_object_get(loaded, "skipped")));
    json_decref(e);
    json_decref(loaded);
    case_end(&c);
}

static void store_of_a_generation_is_bounded(void)
{
    run_workers("1", "fills", 0, "");
}

static void nothing_is_owed_to_the_dead(void)
{
    run_workers("2", "dies_first", 0, "");
}

static void sixty_four_workers_start_and_meet(void)
{
    run_workers("64", "world", 0, "");
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"worker_learns_its_world", worker_learns_its_world, 0},
        {"keys_and_barriers_work", keys_and_barriers_work, 0},
        {"worker_names_the_cause", worker_names_the_cause, 0},
        {"garbage_ends_its_connection_only", garbage_ends_its_connection_only, 0},
        {"flood_holds_up_only_itself", flood_holds_up_only_itself, 0},
        {"worker_may_close_its_descriptors", worker_may_close_its_descriptors, 0},
        {"stop_is_told_in_the_page", stop_is_told_in_the_page, 0},
        {"recovery_is_timed_to_the_first_step", recovery_is_timed_to_the_first_step, 0},
        {"store_of_a_generation_is_bounded", store_of_a_generation_is_bounded, 0},
        {"nothing_is_owed_to_the_dead", nothing_is_owed_to_the_dead, 0},
        {"sixty_four_workers_start_and_meet", sixty_four_workers_start_and_meet, 0},
    };

    if (argc == 3 && strcmp(argv[1], "--worker") == 0)
        return be_worker(argv[2]);
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        return 1;
    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
