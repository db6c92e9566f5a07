#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"
#include "tests/lib/tempdir.h"

static char dir[ER_TEST_PATH_MAX];

static void make_dir(void)
{
    er_test_tempdir(dir);
}

static void remove_dir(void)
{
    er_test_rmtree(dir);
}

TestSuite(base_file, .init = make_dir, .fini = remove_dir);
TestSuite(base_fd, .init = make_dir, .fini = remove_dir);

/* `name` below the test's folder; four results stay valid. */
static const char *below(const char *name)
{
    static char paths[4][2 * ER_TEST_PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static void expect_content(const char *path, const char *text)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf buf;

    er_buf_init(&buf, 1 << 20);
    cr_expect(er_file_read(path, &buf, &err) == 0, "%s", err.text);
    cr_expect(!strcmp(er_buf_str(&buf), text), "'%s'", er_buf_str(&buf));
    er_buf_done(&buf);
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    cr_assert_not_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2; /* without "." and ".." */
}

Test(base_file, replace_creates_and_overwrites)
{
    const char *path = below("f");
    struct stat st;

    cr_expect(er_file_replace(path, "old", 3, 0600, NULL) == 0);
    expect_content(path, "old");
    cr_expect(er_file_replace(path, "newer", 5, 0640, NULL) == 0);
    expect_content(path, "newer");
    cr_expect(stat(path, &st) == 0 && (st.st_mode & 07777) == 0640);
    cr_expect(er_file_replace(path, NULL, 0, 0600, NULL) == 0);
    expect_content(path, "");
    cr_expect(entries(dir) == 1);
}

Test(base_file, secret_that_all_may_read_is_refused)
{
    struct er_buf buf;
    struct er_error err = ER_ERROR_INIT;

    er_buf_init(&buf, 64);
    for (mode_t mode = 0600; mode <= 0607; mode++) {
        int want = mode & 7 ? ER_E_CONFIG : 0;

        cr_assert(er_file_replace(below("f"), "secret", 6, mode, NULL) == 0);
        buf.len = 0;
        cr_expect(er_file_read_secret(below("f"), &buf, &err) == want, "%o", (unsigned)mode);
        cr_expect(buf.len == (want ? 0 : 6));
        cr_expect(!want || (strstr(err.text, below("f")) && strstr(err.text, "chmod o=")));
    }
    cr_assert(er_file_replace(below("f"), "secret", 6, 0640, NULL) == 0);
    cr_expect(er_file_read_secret(below("f"), &buf, &err) == 0);
    cr_expect(er_file_read_secret("/dev/null", &buf, &err) == 0);
    cr_expect(er_file_read_secret(below("none"), &buf, &err) == -ENOENT);
    er_buf_done(&buf);
}

Test(base_file, others_do_not_lead_our_folders_away)
{
    struct er_error err = ER_ERROR_INIT;
    struct stat st;

    cr_assert(mkdir(below("all"), 0700) == 0 && chmod(below("all"), 01777) == 0);
    cr_expect(er_mkdir_all_own(below("all/ours/too"), 0755, &err) == 0, "%s", err.text);
    cr_expect(er_mkdir_all_own(below("all/ours/too"), 0755, &err) == 0);
    if (geteuid() != 0)
        cr_skip_test("needs root to make what belongs to another user");
    cr_assert(mkdir(below("all/theirs"), 0777) == 0 && chown(below("all/theirs"), 1, 1) == 0);
    cr_expect(er_mkdir_all_own(below("all/theirs/x"), 0755, &err) == -EPERM);
    cr_expect(strstr(err.text, "all/theirs' belongs to user 1"), "%s", err.text);
    cr_assert(symlink("ours", below("all/link")) == 0 && lchown(below("all/link"), 1, 1) == 0);
    cr_expect(er_mkdir_all_own(below("all/link/y"), 0755, &err) == -EPERM);
    cr_expect(stat(below("all/ours/y"), &st) < 0 && errno == ENOENT);
    /* Where not everybody can write, whoever made it was meant to. */
    cr_assert(chmod(below("all"), 0755) == 0);
    cr_expect(er_mkdir_all_own(below("all/theirs/x"), 0755, &err) == 0);
}

Test(base_file, a_private_folder_is_ours_alone)
{
    const char *path = below("private"), *file = below("file"), *link = below("link");
    struct stat st;

    for (int i = 0; i < 2; i++) { /* made; then opened to all, and closed again */
        cr_assert_eq(er_mkdir_private(path, NULL), 0);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq(st.st_mode & 0777, 0700u);
        cr_assert_eq(chmod(path, 0755), 0);
    }
    er_test_write_file(file, "");
    cr_assert_eq(er_mkdir_private(file, NULL), -ENOTDIR);
    cr_assert_eq(symlink(path, link), 0);
    cr_assert_eq(er_mkdir_private(link, NULL), -ENOTDIR);
}

Test(base_file, replace_works_without_a_folder_in_the_name)
{
    cr_assert(chdir(dir) == 0);
    cr_expect(er_file_replace("f", "x", 1, 0600, NULL) == 0);
    expect_content("f", "x");
    cr_assert(chdir("/") == 0);
}

Test(base_file, replace_takes_the_longest_name)
{
    char name[NAME_MAX + 1], longer[NAME_MAX + 2];

    memset(name, 'n', NAME_MAX);
    name[NAME_MAX] = '\0';
    cr_expect(er_file_replace(below(name), "x", 1, 0600, NULL) == 0);
    memset(longer, 'n', NAME_MAX + 1);
    longer[NAME_MAX + 1] = '\0';
    cr_expect(er_file_replace(below(longer), "x", 1, 0600, NULL) == -ENAMETOOLONG);
    cr_expect(entries(dir) == 1);
}

Test(base_file, replace_refuses_what_is_no_file)
{
    struct er_error err = ER_ERROR_INIT;

    cr_expect(er_file_replace("", "x", 1, 0600, &err) == -EINVAL && err.text[0]);
    cr_expect(er_file_replace(below(""), "x", 1, 0600, &err) == -EINVAL);
    cr_expect(er_file_replace(below(".."), "x", 1, 0600, &err) == -EINVAL);
    cr_expect(er_file_replace(below("none/f"), "x", 1, 0600, &err) == -ENOENT);
    cr_expect(strstr(err.text, "none"), "%s", err.text);
    cr_assert(mkdir(below("folder"), 0700) == 0);
    cr_expect(er_file_replace(below("folder"), "x", 1, 0600, &err) == -EISDIR);
    cr_expect(entries(dir) == 1);
}

Test(base_file, replace_replaces_a_link_not_its_target)
{
    struct stat st;

    er_test_write_file(below("target"), "kept");
    cr_assert(symlink("target", below("link")) == 0);
    cr_expect(er_file_replace(below("link"), "new", 3, 0600, NULL) == 0);
    expect_content(below("target"), "kept");
    cr_expect(lstat(below("link"), &st) == 0 && S_ISREG(st.st_mode));
}

/* A full disk, as far as one can be had without a file system of one's own: writes beyond 64 KiB
 * fail. */
Test(base_file, failed_write_leaves_the_old_file_and_no_temporary)
{
    struct rlimit limit = {65536, 65536};
    struct er_error err = ER_ERROR_INIT;
    static char big[200000];

    cr_assert(er_file_replace(below("f"), "old", 3, 0600, NULL) == 0);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    cr_expect(er_file_replace(below("f"), big, sizeof(big), 0600, &err) == -EFBIG);
    cr_expect(strstr(err.text, "write") && strstr(err.text, "/f"), "%s", err.text);
    cr_expect(er_file_replace(below("g"), big, sizeof(big), 0600, &err) == -EFBIG);
    expect_content(below("f"), "old");
    cr_expect(entries(dir) == 1);
}

/* A reader sees the old content or the new, whole, whenever it looks. */
Test(base_file, concurrent_reader_never_sees_a_mixture)
{
    enum { BYTES = 20000 };
    static char data[BYTES];
    pid_t writer;
    int status = 0;

    memset(data, 'a', BYTES);
    cr_assert(er_file_replace(below("f"), data, BYTES, 0600, NULL) == 0);
    writer = fork();
    cr_assert(writer >= 0);
    if (writer == 0) {
        for (int i = 0; i < 60; i++) {
            memset(data, 'a' + i % 26, BYTES);
            if (er_file_replace(below("f"), data, BYTES, 0600, NULL))
                _exit(1);
        }
        _exit(0);
    }
    while (waitpid(writer, &status, WNOHANG) == 0) {
        struct er_buf buf;

        er_buf_init(&buf, BYTES);
        cr_assert(er_file_read(below("f"), &buf, NULL) == 0 && buf.len == BYTES);
        cr_assert(strspn(buf.data, (char[]){buf.data[0], '\0'}) == BYTES);
        er_buf_done(&buf);
    }
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_expect(entries(dir) == 1);
}

Test(base_file, read_appends_up_to_the_limit)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf buf;

    er_test_write_file(below("f"), "12345");
    er_buf_init(&buf, 8);
    cr_expect(er_buf_add_str(&buf, "abc") == 0);
    cr_expect(er_file_read(below("f"), &buf, &err) == 0);
    cr_expect(!strcmp(er_buf_str(&buf), "abc12345"));
    cr_expect(er_file_read(below("f"), &buf, &err) == -EFBIG && err.text[0]);
    er_buf_consume(&buf, 4);
    cr_expect(er_file_read(below("f"), &buf, &err) == -EFBIG);
    cr_expect(!strcmp(er_buf_str(&buf), "2345"), "'%s'", er_buf_str(&buf));
    cr_expect(er_file_read(below("none"), &buf, &err) == -ENOENT && strstr(err.text, "none"));
    cr_expect(er_file_read(dir, &buf, &err) == -EISDIR);
    cr_expect(er_file_read("/dev/zero", &buf, &err) == -EFBIG);
    cr_expect(!strcmp(er_buf_str(&buf), "2345"));
    er_buf_done(&buf);
}

Test(base_file, mkdir_makes_what_is_missing)
{
    struct er_error err = ER_ERROR_INIT;
    struct stat st;

    cr_expect(er_mkdir_all(below("a/b/c"), 0700, &err) == 0, "%s", err.text);
    cr_expect(stat(below("a/b/c"), &st) == 0 && S_ISDIR(st.st_mode));
    cr_expect(er_mkdir_all(below("a/b/c"), 0700, &err) == 0);
    cr_expect(er_mkdir_all(below("a//b///d/"), 0700, &err) == 0);
    cr_expect(stat(below("a/b/d"), &st) == 0);
    cr_assert(symlink("a", below("link")) == 0);
    cr_expect(er_mkdir_all(below("link/e"), 0700, &err) == 0);
    cr_expect(stat(below("a/e"), &st) == 0);
    er_test_write_file(below("file"), "");
    cr_expect(er_mkdir_all(below("file"), 0700, &err) == -ENOTDIR && strstr(err.text, "file"));
    cr_expect(er_mkdir_all(below("file/x"), 0700, &err) == -ENOTDIR);
    cr_expect(er_mkdir_all("", 0700, &err) == -EINVAL);
    cr_expect(er_mkdir_all("/", 0700, &err) == 0);
    cr_assert(chdir(dir) == 0);
    cr_expect(er_mkdir_all("relative/x", 0700, &err) == 0);
    cr_expect(stat(below("relative/x"), &st) == 0);
    cr_assert(chdir("/") == 0);
}

Test(base_file, fsync_dir_wants_a_folder)
{
    cr_expect(er_fsync_dir(dir, NULL) == 0);
    er_test_write_file(below("file"), "");
    cr_expect(er_fsync_dir(below("file"), NULL) == -ENOTDIR);
    cr_expect(er_fsync_dir(below("none"), NULL) == -ENOENT);
}

Test(base_file, remove_takes_whole_trees_and_missing_ones)
{
    struct er_error err = ER_ERROR_INIT;

    cr_assert(er_mkdir_all(below("t/a/b/c"), 0700, NULL) == 0);
    cr_assert(er_mkdir_all(below("t/.hidden/x"), 0700, NULL) == 0);
    for (int i = 0; i < 300; i++) {
        char name[32];

        snprintf(name, sizeof(name), "t/a/file-%d", i);
        er_test_write_file(below(name), "x");
    }
    cr_expect(er_remove_all(below("t"), &err) == 0, "%s", err.text);
    cr_expect(entries(dir) == 0);
    cr_expect(er_remove_all(below("t"), &err) == 0);
    er_test_write_file(below("file"), "x");
    cr_expect(er_remove_all(below("file"), &err) == 0);
    cr_expect(entries(dir) == 0);
}

Test(base_file, remove_never_follows_links)
{
    struct er_error err = ER_ERROR_INIT;

    cr_assert(er_mkdir_all(below("kept"), 0700, NULL) == 0);
    er_test_write_file(below("kept/file"), "kept");
    cr_assert(er_mkdir_all(below("t"), 0700, NULL) == 0);
    cr_assert(symlink("../kept", below("t/link")) == 0);
    cr_assert(symlink("kept", below("link")) == 0);
    cr_assert(symlink("t", below("t/self")) == 0);
    cr_expect(er_remove_all(below("t"), &err) == 0, "%s", err.text);
    cr_expect(er_remove_all(below("link/"), &err) == 0, "%s", err.text);
    expect_content(below("kept/file"), "kept");
    cr_expect(entries(dir) == 1);
}

Test(base_file, remove_refuses_the_root_and_has_a_depth_limit)
{
    struct er_error err = ER_ERROR_INIT;
    char path[1024] = "d";

    cr_expect(er_remove_all("", &err) == -EINVAL);
    cr_expect(er_remove_all("///", &err) == -EINVAL && err.text[0]);
    for (int i = 0; i < 126; i++)
        strcat(path, "/d");
    cr_assert(er_mkdir_all(below(path), 0700, NULL) == 0);
    cr_expect(er_remove_all(below("d"), &err) == 0, "%s", err.text);
    strcat(path, "/d/d");
    cr_assert(er_mkdir_all(below(path), 0700, NULL) == 0);
    cr_expect(er_remove_all(below("d"), &err) == -ENAMETOOLONG && err.text[0]);
    cr_expect(er_remove_all(below("d/d"), &err) == 0);
}

Test(base_fd, memfd_cannot_shrink)
{
    int fd = er_memfd("test", 4096);

    cr_assert(fd >= 0);
    cr_expect(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    cr_expect(ftruncate(fd, 0) < 0 && errno == EPERM);
    close(fd);
}

Test(base_fd, flags_are_set_and_cleared)
{
    int fds[2];

    cr_assert(pipe(fds) == 0);
    cr_expect(er_fd_cloexec(fds[0], 1) == 0 && (fcntl(fds[0], F_GETFD) & FD_CLOEXEC));
    cr_expect(er_fd_cloexec(fds[0], 0) == 0 && !(fcntl(fds[0], F_GETFD) & FD_CLOEXEC));
    cr_expect(er_fd_nonblock(fds[0]) == 0 && (fcntl(fds[0], F_GETFL) & O_NONBLOCK));
    close(fds[0]);
    close(fds[1]);
    cr_expect(er_fd_nonblock(fds[0]) == -EBADF && er_fd_cloexec(-1, 1) == -EBADF);
}

Test(base_fd, whole_buffers_or_an_error)
{
    int fd = open(below("f"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char text[8] = "";

    cr_assert(fd >= 0);
    cr_expect(er_write_all(fd, "12345", 5) == 0);
    cr_expect(er_pwrite_all(fd, "abc", 3, 5) == 0);
    cr_expect(er_pread_all(fd, text, 4, 3) == 0 && !memcmp(text, "45ab", 4));
    cr_expect(er_pread_all(fd, text, 4, 6) == -ENODATA);
    cr_expect(lseek(fd, 0, SEEK_SET) == 0);
    cr_expect(er_read_all(fd, text, 8) == 0 && !memcmp(text, "12345abc", 8));
    cr_expect(er_read_all(fd, text, 1) == -ENODATA);
    cr_expect(er_read_all(fd, text, 0) == 0);
    close(fd);
    cr_expect(er_write_all(fd, "x", 1) == -EBADF && er_read_all(fd, text, 1) == -EBADF);
    fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    cr_expect(er_write_all(fd, "x", 1) == -ENOSPC && er_pwrite_all(fd, "x", 1, 0) == -ENOSPC);
    close(fd);
}

Test(base_fd, descriptors_pass_over_a_socket)
{
    int socks[2], fds[2], got;
    char byte = 0;

    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks) == 0);
    cr_assert(pipe2(fds, O_CLOEXEC) == 0);
    cr_expect(er_send_fd(socks[0], fds[1]) == 0);
    got = er_recv_fd(socks[1]);
    cr_assert(got >= 0 && got != fds[1]);
    cr_expect(fcntl(got, F_GETFD) & FD_CLOEXEC);
    cr_expect(write(got, "x", 1) == 1 && read(fds[0], &byte, 1) == 1 && byte == 'x');
    close(got);
    cr_expect(er_send_fd(socks[0], -1) == -EBADF);
    cr_expect(write(socks[0], "x", 1) == 1 && er_recv_fd(socks[1]) == -EBADMSG);
    close(socks[0]);
    cr_expect(er_recv_fd(socks[1]) == -ENODATA);
    cr_expect(er_send_fd(socks[1], fds[0]) == -EPIPE);
    close(socks[1]);
    close(fds[0]);
    close(fds[1]);
}

/* A packet with two descriptors is refused, and neither stays open. */
Test(base_fd, surplus_descriptors_do_not_leak)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    char byte = 0;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    int socks[2], two[2], next;

    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks) == 0);
    two[0] = two[1] = socks[0];
    CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN(sizeof(two));
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), two, sizeof(two));
    next = dup(socks[0]);
    close(next);
    cr_assert(sendmsg(socks[0], &msg, MSG_NOSIGNAL) == 1);
    cr_expect(er_recv_fd(socks[1]) == -EMSGSIZE);
    cr_expect(dup(socks[0]) == next, "a descriptor was left open");
    close(next);
    close(socks[0]);
    close(socks[1]);
}

Test(base_cleanup, scopes_close_free_kill_and_keep_errno)
{
    int fds[2], kept = -1;
    pid_t pid;

    cr_assert(pipe2(fds, O_CLOEXEC) == 0);
    pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        pause();
        _exit(0);
    }
    {
        ER_CLEANUP(er_cleanup_fd) int a = fds[0];
        ER_CLEANUP(er_cleanup_fd) int b = fds[1];
        ER_CLEANUP(er_cleanup_fd) int none = -1;
        ER_CLEANUP(er_cleanup_free) char *text = strdup("x");
        ER_CLEANUP(er_cleanup_free) char *nothing = NULL;
        ER_CLEANUP(er_cleanup_child) pid_t child = pid;

        kept = ER_TAKE_FD(b);
        cr_assert(text && !nothing && a >= 0 && none < 0 && child > 0);
        errno = ERANGE;
    }
    cr_expect(errno == ERANGE);
    cr_expect(fcntl(fds[0], F_GETFD) < 0 && fcntl(kept, F_GETFD) >= 0);
    cr_expect(waitpid(pid, NULL, 0) < 0 && errno == ECHILD, "the child was reaped");
    close(kept);
}
