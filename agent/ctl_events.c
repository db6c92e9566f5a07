/* elastic-ctl events: the event files of all nodes that lie in the job's log folder, in the order
 * of their times. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ctl_print.h"
#include "agent/ctl_run.h"
#include "agent/findings.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define SHOWN       20 /* unless another number is given */
#define SHOWN_MAX   1000000u
#define FOLLOW_MS   300
#define PATTERN_MAX 4200

/* One node's file, and what it has for us next. */
struct source {
    char *name; /* owned; in the folder */
    FILE *file;
    char *line; /* getline's */
    size_t room;
    json_t *next; /* NULL: nothing at present */
    bool exited;  /* what was taken last is the agent's last word */
};

struct sources {
    const char *folder;
    struct source *list;
    size_t n;
};

/* A line that is still being written is left for later. */
static void read_next(struct source *s)
{
    while (!s->next) {
        long at = ftell(s->file);
        ssize_t n = getline(&s->line, &s->room, s->file);

        if (n <= 0 || s->line[n - 1] != '\n') {
            if (at >= 0)
                fseek(s->file, at, SEEK_SET);
            clearerr(s->file);
            return;
        }
        s->next = json_loadb(s->line, (size_t)n, 0, NULL);
        if (s->next && !json_is_object(s->next)) { /* nobody's event */
            json_decref(s->next);
            s->next = NULL;
        }
    }
}

/* The oldest event that nobody has taken yet; the caller's. Times of one format compare as text. */
static json_t *take_oldest(struct sources *all)
{
    struct source *oldest = NULL;
    json_t *event;

    for (size_t i = 0; i < all->n; i++) {
        struct source *s = &all->list[i];

        read_next(s);
        if (s->next &&
            (!oldest || strcmp(er_ctl_text(s->next, "ts"), er_ctl_text(oldest->next, "ts")) < 0))
            oldest = s;
    }
    if (!oldest)
        return NULL;
    event = oldest->next;
    oldest->next = NULL;
    oldest->exited = strcmp(er_ctl_text(event, "event"), "agent_exited") == 0;
    return event;
}

static void close_all(struct sources *all)
{
    for (size_t i = 0; i < all->n; i++) {
        fclose(all->list[i].file);
        free(all->list[i].name);
        free(all->list[i].line);
        json_decref(all->list[i].next);
    }
    free(all->list);
}

static int is_event_file(const struct dirent *entry)
{
    return fnmatch("events-*.jsonl", entry->d_name, 0) == 0;
}

/* NULL: it cannot be read, or is something that a reader would wait for. */
static FILE *open_file(int folder, const char *name)
{
    ER_CLEANUP(er_cleanup_fd)
    int fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    FILE *file;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    file = fdopen(fd, "r");
    if (file)
        fd = -1; /* the stream's now */
    return file;
}

static bool is_open(const struct sources *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->list[i].name, name) == 0)
            return true;
    }
    return false;
}

static void add_source(struct sources *all, int folder, const char *name)
{
    struct source s = {.file = open_file(folder, name)}, *list;

    if (s.file)
        s.name = strdup(name);
    list = s.name ? reallocarray(all->list, all->n + 1, sizeof(*list)) : NULL;
    if (!list) {
        if (s.file)
            fclose(s.file);
        free(s.name);
        return;
    }
    all->list = list;
    all->list[all->n++] = s;
}

/* Files that are not open yet: those of nodes that came later, too. */
static void open_new(struct sources *all)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(all->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dirent **found = NULL;
    int n = fd < 0 ? 0 : scandir(all->folder, &found, is_event_file, alphasort);

    for (int i = 0; i < n; i++) {
        if (!is_open(all, found[i]->d_name))
            add_source(all, fd, found[i]->d_name);
        free(found[i]);
    }
    free(found);
}

/* Nothing more came of it. Another file may have its name by now (a new run sets the old ones
 * aside), or somebody has emptied it: then it is read from its beginning. */
static void look_again(struct sources *all, struct source *s)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(all->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat now, ours;
    FILE *file;

    if (fd < 0 || fstat(fileno(s->file), &ours) < 0 || fstatat(fd, s->name, &now, 0) < 0)
        return;
    if (now.st_dev == ours.st_dev && now.st_ino == ours.st_ino) {
        if (now.st_size < ftell(s->file)) {
            rewind(s->file);
            s->exited &= now.st_size == 0;
        }
        return;
    }
    file = open_file(fd, s->name);
    if (file) {
        fclose(s->file);
        s->file = file;
        s->exited = false;
    }
}

/* The last `wanted` of what there is. */
static void show_last(struct sources *all, size_t wanted, bool json)
{
    json_t **ring = calloc(wanted, sizeof(*ring)), *event;
    size_t n = 0;

    while (ring && (event = take_oldest(all)) != NULL) {
        json_decref(ring[n % wanted]);
        ring[n++ % wanted] = event;
    }
    for (size_t i = n > wanted ? n - wanted : 0; ring && i < n; i++)
        er_ctl_print_event(ring[i % wanted], json);
    for (size_t i = 0; ring && i < wanted; i++)
        json_decref(ring[i]);
    free(ring);
}

static bool all_exited(const struct sources *all)
{
    for (size_t i = 0; i < all->n; i++) {
        if (!all->list[i].exited)
            return false;
    }
    return true;
}

/* Until all agents have said their last word, or nobody listens any more. */
static int follow(struct sources *all, bool json)
{
    int code = er_ctl_done(0);

    while (!code) {
        json_t *event = take_oldest(all);

        if (event) {
            er_ctl_print_event(event, json);
        } else {
            for (size_t i = 0; i < all->n; i++)
                look_again(all, &all->list[i]);
            open_new(all);
            if (all->n && all_exited(all))
                break;
            poll(NULL, 0, FOLLOW_MS);
        }
        json_decref(event);
        code = er_ctl_done(0);
    }
    return code;
}

/* Where the job file says, else where the agent writes. */
static int find_folder(struct er_ctl_call *c, char ret[PATTERN_MAX - 64])
{
    const struct er_config *config = c->job.config;
    struct er_ctl_msg request = {.type = ER_CTL_STATUS};
    struct er_error err = ER_ERROR_INIT;
    json_t *state = NULL;
    int code = er_ctl_call_agent(c, &err);

    if (!code)
        code = er_ctl_ask_agent(c, &request, &state);
    if (!code && json_is_string(json_object_get(state, "log_dir"))) {
        snprintf(ret, PATTERN_MAX - 64, "%s", er_ctl_text(state, "log_dir"));
    } else if (config && config->log.dir) {
        snprintf(ret, PATTERN_MAX - 64, "%s/%s", config->log.dir, c->job.name);
        code = 0;
    } else {
        fprintf(stderr, "elastic-ctl: the job keeps no logs (log.dir)\n");
        code = ER_CTL_EXIT_NO_SUCH;
    }
    json_decref(state);
    return code;
}

int er_ctl_run_events(struct er_ctl_call *c)
{
    char folder[PATTERN_MAX - 64];
    struct sources all = {.folder = folder};
    struct er_error err = ER_ERROR_INIT;
    uint64_t wanted = SHOWN;
    int code;

    if (c->words.operand && er_parse_u64(c->words.operand, 1, SHOWN_MAX, &wanted, &err))
        return er_ctl_wrong("events: how many", err.text);
    code = find_folder(c, folder);
    if (!code)
        open_new(&all);
    if (!code && all.n == 0 && !c->words.follow) {
        fprintf(stderr, "elastic-ctl: no event file that can be read is in '%s'\n", folder);
        code = ER_CTL_EXIT_NO_SUCH;
    } else if (!code && all.n == 0) {
        fprintf(stderr, "elastic-ctl: waiting for the first event file in '%s'\n", folder);
    }
    if (!code) {
        show_last(&all, wanted, c->words.json);
        code = c->words.follow ? follow(&all, c->words.json) : er_ctl_done(0);
    }
    close_all(&all);
    return code;
}
