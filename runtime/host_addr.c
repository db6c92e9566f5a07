#include "runtime/host_addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/rand.h"

#define UNIX_PREFIX "elastic-run-" /* what tells an abstract name from a numeric address */

enum { BACKLOG = SOMAXCONN, KEEPALIVE_IDLE_S = 10, KEEPALIVE_EVERY_S = 5, KEEPALIVE_COUNT = 3 };

union address {
    struct sockaddr any;
    struct sockaddr_in in4;
    struct sockaddr_in6 in6;
    struct sockaddr_un un;
};

uint64_t er_host_id_of(const char *name)
{
    uint64_t id = 0;

    for (const char *p = name; *p; p++)
        id = er_rand_mix(id ^ (unsigned char)*p);
    return id;
}

uint64_t er_host_id(void)
{
    char boot[64] = {0};
    struct stat ns = {0};
    ER_CLEANUP(er_cleanup_fd)
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && read(fd, boot, sizeof(boot) - 1) < 0)
        boot[0] = '\0';
    stat("/proc/self/ns/net", &ns);
    return er_rand_mix(er_host_id_of(boot) ^ (uint64_t)ns.st_ino);
}

static void to_hex(const uint8_t *bytes, size_t n, char *ret)
{
    for (size_t i = 0; i < n; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

/* A numeric address of either family; 0 or -EINVAL. */
static int parse_address(const char *text, uint16_t port, union address *ret, socklen_t *ret_n)
{
    memset(ret, 0, sizeof(*ret));
    if (inet_pton(AF_INET, text, &ret->in4.sin_addr) == 1) {
        ret->in4.sin_family = AF_INET;
        ret->in4.sin_port = htons(port);
        *ret_n = sizeof(ret->in4);
        return 0;
    }
    if (inet_pton(AF_INET6, text, &ret->in6.sin6_addr) == 1) {
        ret->in6.sin6_family = AF_INET6;
        ret->in6.sin6_port = htons(port);
        *ret_n = sizeof(ret->in6);
        return 0;
    }
    return -EINVAL;
}

static int abstract_address(const char *name, union address *ret, socklen_t *ret_n)
{
    size_t n = strlen(name);

    memset(ret, 0, sizeof(*ret));
    ret->un.sun_family = AF_UNIX;
    if (n + 1 > sizeof(ret->un.sun_path))
        return -ENAMETOOLONG;
    memcpy(ret->un.sun_path + 1, name, n);
    *ret_n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    return 0;
}

/* A bound, listening socket or -errno. */
static int listen_on(const union address *address, socklen_t n)
{
    ER_CLEANUP(er_cleanup_fd)
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int off = 0;

    if (fd < 0)
        return -errno;
    if (address->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, &address->any, n) < 0 || listen(fd, BACKLOG) < 0)
        return -errno;
    return ER_TAKE_FD(fd);
}

static int listen_on_text(const char *text)
{
    union address address;
    socklen_t n;
    int rc = parse_address(text, 0, &address, &n);

    return rc < 0 ? rc : listen_on(&address, n);
}

static void add_address(struct er_host_record *rec, const char *text)
{
    if (rec->addr_n < ER_HOST_ADDR_MAX)
        snprintf(rec->addr[rec->addr_n++], ER_HOST_ADDR_TEXT, "%s", text);
}

/* Link-local IPv6 addresses need a scope that only this host knows; loopback helps nobody else, but
 * may be asked for by name. */
static bool useful(const struct ifaddrs *i, bool named, char ret_text[ER_HOST_ADDR_TEXT])
{
    const union address *a = (const void *)i->ifa_addr;
    const void *raw;

    if (!a || !(i->ifa_flags & IFF_UP) || (!named && (i->ifa_flags & IFF_LOOPBACK)))
        return false;
    if (a->any.sa_family == AF_INET)
        raw = &a->in4.sin_addr;
    else if (a->any.sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr))
        raw = &a->in6.sin6_addr;
    else
        return false;
    return inet_ntop(a->any.sa_family, raw, ret_text, ER_HOST_ADDR_TEXT) != NULL;
}

/* All interfaces' addresses, or those of the `n` bytes of one name. */
static void add_interfaces(struct er_host_record *rec, const char *name, size_t n)
{
    struct ifaddrs *all = NULL;
    char text[ER_HOST_ADDR_TEXT];

    if (getifaddrs(&all) < 0)
        return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if ((!name || (strlen(i->ifa_name) == n && memcmp(i->ifa_name, name, n) == 0)) &&
            useful(i, name != NULL, text))
            add_address(rec, text);
    freeifaddrs(all);
}

static int add_named(struct er_host_record *rec, const char *names)
{
    int before = rec->addr_n;

    while (*names) {
        size_t n = strcspn(names, ",");

        add_interfaces(rec, names, n);
        names += n + (names[n] == ',');
    }
    return rec->addr_n > before ? 0 : -ENODEV;
}

static int listen_everywhere(void)
{
    int fd = listen_on_text("::");

    return fd >= 0 ? fd : listen_on_text("0.0.0.0");
}

static int listen_tcp(struct er_host_record *rec, const struct er_host_listen *how)
{
    int fd, rc;

    if (*how->address) {
        add_address(rec, how->address);
        return listen_on_text(how->address);
    }
    if (*how->interfaces) {
        rc = add_named(rec, how->interfaces);
        return rc < 0 ? rc : listen_everywhere();
    }
    if (how->local) {
        fd = listen_on_text("127.0.0.1");
        add_address(rec, fd >= 0 ? "127.0.0.1" : "::1");
        return fd >= 0 ? fd : listen_on_text("::1");
    }
    add_address(rec, "127.0.0.1"); /* a peer tries it only when it is on this host */
    add_interfaces(rec, NULL, 0);
    return listen_everywhere();
}

static int listen_unix(struct er_host_record *rec)
{
    union address address;
    socklen_t n;
    uint8_t random[12];
    char name[ER_HOST_ADDR_TEXT] = UNIX_PREFIX;
    int rc;

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -EIO;
    to_hex(random, sizeof(random), name + strlen(name));
    add_address(rec, name);
    rc = abstract_address(name, &address, &n);
    return rc < 0 ? rc : listen_on(&address, n);
}

static bool is_unix(const char *addr)
{
    return strncmp(addr, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
}

bool er_host_reaches(const struct er_host_record *rec, int i, uint64_t my_host)
{
    const char *addr = rec->addr[i];
    bool near = is_unix(addr) || strcmp(addr, "127.0.0.1") == 0 || strcmp(addr, "::1") == 0;

    return rec->host == my_host || !near;
}

int er_host_listen(struct er_host_record *rec, const struct er_host_listen *how, int ret_fd[2],
                   struct er_error *err)
{
    union address bound = {0};
    socklen_t n = sizeof(bound);
    ER_CLEANUP(er_cleanup_fd) int unix_fd = -1;
    ER_CLEANUP(er_cleanup_fd) int tcp_fd = -1;

    *rec = (struct er_host_record){.transport = how->transport, .host = how->host};
    if (getrandom(rec->secret, sizeof(rec->secret), 0) != (ssize_t)sizeof(rec->secret))
        return er_error_errno(err, "random secret");
    if (how->transport != ER_TRANSPORT_TCP) {
        unix_fd = listen_unix(rec);
        if (unix_fd < 0)
            return er_error_set(err, unix_fd, "listen: %s", er_error_name(unix_fd));
    }
    if (how->transport != ER_TRANSPORT_SHM) {
        const char *where = *how->address ? how->address : how->interfaces;

        tcp_fd = listen_tcp(rec, how);
        if (tcp_fd < 0)
            return er_error_set(err, tcp_fd, "listen%s%s: %s", *where ? " on " : "", where,
                                er_error_name(tcp_fd));
        if (getsockname(tcp_fd, &bound.any, &n) < 0)
            return er_error_errno(err, "own address");
        rec->port = ntohs(bound.in4.sin_port); /* at the same place in both families */
    }
    ret_fd[0] = ER_TAKE_FD(unix_fd);
    ret_fd[1] = ER_TAKE_FD(tcp_fd);
    return 0;
}

static const char *const transport_words[] = {
    [ER_TRANSPORT_AUTO] = "any", [ER_TRANSPORT_SHM] = "shm", [ER_TRANSPORT_TCP] = "tcp"};

const char *er_host_transport_word(enum er_comm_transport transport)
{
    return transport_words[transport];
}

int er_host_record_format(const struct er_host_record *rec, char *ret, size_t cap)
{
    char secret[2 * ER_HOST_SECRET_BYTES + 1];
    size_t at;

    to_hex(rec->secret, sizeof(rec->secret), secret);
    at = (size_t)snprintf(ret, cap, "er1 %s %s %016llx %u", transport_words[rec->transport], secret,
                          (unsigned long long)rec->host, rec->port);
    for (int i = 0; i < rec->addr_n && at < cap; i++)
        at += (size_t)snprintf(ret + at, cap - at, " %s", rec->addr[i]);
    return at < cap ? (int)at : -ENOSPC;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

static bool parse_hex(const char *text, uint8_t *ret, size_t n)
{
    if (strlen(text) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        ret[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

static bool parse_transport(const char *word, enum er_comm_transport *ret)
{
    for (size_t i = 0; i < ER_ARRAY_N(transport_words); i++)
        if (strcmp(word, transport_words[i]) == 0) {
            *ret = (enum er_comm_transport)i;
            return true;
        }
    return false;
}

static bool parse_words(struct er_host_record *rec, char *text)
{
    char *save = NULL, *word[5];
    uint8_t host[8];
    uint64_t port;

    for (size_t i = 0; i < ER_ARRAY_N(word); i++) {
        word[i] = strtok_r(i ? NULL : text, " ", &save);
        if (!word[i])
            return false;
    }
    if (strcmp(word[0], "er1") != 0 || !parse_transport(word[1], &rec->transport) ||
        !parse_hex(word[2], rec->secret, sizeof(rec->secret)) ||
        !parse_hex(word[3], host, sizeof(host)) || er_parse_u64(word[4], 0, 65535, &port, NULL) < 0)
        return false;
    for (size_t i = 0; i < sizeof(host); i++)
        rec->host = rec->host << 8 | host[i];
    rec->port = (uint16_t)port;
    for (char *a = strtok_r(NULL, " ", &save); a; a = strtok_r(NULL, " ", &save)) {
        if (strlen(a) >= ER_HOST_ADDR_TEXT)
            return false;
        add_address(rec, a);
    }
    return rec->addr_n > 0;
}

int er_host_record_parse(struct er_host_record *ret, const char *text, size_t n,
                         struct er_error *err)
{
    struct er_host_record rec = {0};
    char copy[ER_HOST_RECORD_MAX];

    if (n >= sizeof(copy) || memchr(text, '\0', n))
        return er_error_set(err, ER_E_PROTOCOL, "address record of %zu bytes", n);
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (!parse_words(&rec, copy))
        return er_error_set(err, ER_E_PROTOCOL, "not an address record: '%.*s'",
                            n < 40 ? (int)n : 40, text);
    *ret = rec;
    return 0;
}

int er_host_dial(const struct er_host_record *rec, int i, int *ret_fd)
{
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    union address address;
    socklen_t n;
    int rc = is_unix(rec->addr[i]) ? abstract_address(rec->addr[i], &address, &n)
                                   : parse_address(rec->addr[i], rec->port, &address, &n);

    if (rc < 0)
        return rc;
    fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    rc = connect(fd, &address.any, n) == 0 ? 0 : errno == EINPROGRESS ? ER_IN_PROGRESS : -errno;
    /* An abstract name has no permissions: when its owner has died, anybody can take it, and would
     * be told the secret. */
    if (rc == 0 && address.any.sa_family == AF_UNIX && !er_fd_peer_is_own(fd))
        return -EACCES;
    if (rc >= 0)
        *ret_fd = ER_TAKE_FD(fd);
    return rc;
}

/* IPv4's come as IPv6's from a socket that listens for both. */
static bool own_address(int fd, union address *ret, socklen_t *ret_n,
                        char ret_text[ER_HOST_ADDR_TEXT])
{
    *ret_n = sizeof(*ret);
    if (getsockname(fd, &ret->any, ret_n) < 0)
        return false;
    if (ret->any.sa_family == AF_INET) {
        ret->in4.sin_port = 0;
        return inet_ntop(AF_INET, &ret->in4.sin_addr, ret_text, ER_HOST_ADDR_TEXT) != NULL;
    }
    ret->in6.sin6_port = 0;
    return ret->any.sa_family == AF_INET6 &&
           inet_ntop(AF_INET6, &ret->in6.sin6_addr, ret_text, ER_HOST_ADDR_TEXT) != NULL;
}

bool er_host_adrift(int fd, char ret_address[ER_HOST_ADDR_TEXT])
{
    ER_CLEANUP(er_cleanup_fd) int other = -1;
    union address own = {0};
    int off = 0;
    socklen_t n;

    if (!own_address(fd, &own, &n, ret_address))
        return false;
    other = socket(own.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (own.any.sa_family == AF_INET6)
        setsockopt(other, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    return other >= 0 && bind(other, &own.any, n) < 0 && errno == EADDRNOTAVAIL;
}

static void set_int(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof(value));
}

static void set_congestion(int fd, const char *first, const char *second)
{
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, first, (socklen_t)strlen(first)) < 0)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, second, (socklen_t)strlen(second));
}

void er_host_tune(int fd, bool local, uint64_t pace_bytes_per_s)
{
    int domain = AF_UNSPEC;
    socklen_t n = sizeof(domain);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain == AF_UNIX)
        return;
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
    if (local)
        set_congestion(fd, "reno", "cubic");
    else
        set_congestion(fd, "cubic", "reno");
    if (pace_bytes_per_s)
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace_bytes_per_s, sizeof(pace_bytes_per_s));
}
