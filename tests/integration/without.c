/*
 * without SYSCALL... -- PROGRAM [ARG...]: runs PROGRAM where those system calls fail with ENOSYS,
 * as on an older kernel, or with EPERM (`SYSCALL=EPERM`), as in sandboxes that do not know them.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned number;
} CALLS[] = {
    {"clone3", SYS_clone3},         {"close_range", SYS_close_range},
    {"renameat2", SYS_renameat2},   {"pidfd_getfd", SYS_pidfd_getfd},
    {"faccessat2", SYS_faccessat2},
};

enum { FILTERS_MAX = 64, CANNOT_RUN = 99 };

static int add(struct sock_filter *at, const char *word)
{
    size_t n = strcspn(word, "=");
    unsigned error = strcmp(word + n, "=EPERM") == 0 ? EPERM : ENOSYS;

    for (size_t i = 0; i < sizeof(CALLS) / sizeof(CALLS[0]); i++) {
        if (strncmp(CALLS[i].name, word, n) != 0 || CALLS[i].name[n] != '\0')
            continue;
        at[0] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, 0, 1);
        at[1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
        return 2;
    }
    fprintf(stderr, "without: unknown system call '%s'\n", word);
    return -1;
}

int main(int argc, char **argv)
{
    struct sock_filter filter[FILTERS_MAX] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    struct sock_fprog program = {.filter = filter, .len = 1};
    int i = 1;

    for (; i < argc && strcmp(argv[i], "--") != 0 && program.len < FILTERS_MAX - 3; i++) {
        int n = add(filter + program.len, argv[i]);

        if (n < 0)
            return CANNOT_RUN;
        program.len = (unsigned short)(program.len + n);
    }
    filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (i + 1 >= argc || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
        perror("without");
        return CANNOT_RUN;
    }
    execvp(argv[i + 1], argv + i + 1);
    perror(argv[i + 1]);
    return CANNOT_RUN;
}
