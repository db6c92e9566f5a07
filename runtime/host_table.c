/* The table of all ranks' records: rank 0 makes and sends it, the others take it. */
#include "runtime/host_mesh_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* ---- rank 0 ---- */

static int make_table(struct er_mesh *mesh, struct er_error *err)
{
    size_t cap = (size_t)mesh->config.size * ER_HOST_RECORD_MAX, at = 0;

    mesh->table = malloc(cap);
    if (!mesh->table)
        return er_error_set(err, -ENOMEM, "addresses of all ranks: out of memory");
    for (int i = 0; i < mesh->config.size; i++) {
        int n = er_host_record_format(&mesh->peer[i].rec, mesh->table + at, ER_HOST_RECORD_MAX - 1);

        if (n < 0)
            return er_error_set(err, n, "address record of rank %d does not fit", i);
        at += (size_t)n;
        mesh->table[at++] = '\n';
    }
    mesh->table_bytes = (uint32_t)at;
    return 0;
}

static void say_who_is_missing(struct er_mesh *mesh)
{
    uint64_t now = er_now_us();
    int missing = 1;

    if (now < mesh->note_us)
        return;
    mesh->note_us = now + ER_MESH_NOTE_US;
    while (missing < mesh->config.size && mesh->peer[missing].link[ER_MESH_CONTROL].fd >= 0)
        missing++;
    er_mesh_say_missing(mesh, missing);
}

/* Head and table to one rank, as far as it takes them. */
static int send_table(struct er_mesh *mesh, int peer)
{
    struct link *l = &mesh->peer[peer].link[ER_MESH_CONTROL];
    struct er_wire_table head = {.magic = ER_WIRE_TABLE, .bytes = mesh->table_bytes};
    size_t total = sizeof(head) + mesh->table_bytes;

    while (l->table_n < total) {
        const char *from = l->table_n < sizeof(head) ? (const char *)&head + l->table_n
                                                     : mesh->table + l->table_n - sizeof(head);
        size_t left = l->table_n < sizeof(head) ? sizeof(head) - l->table_n : total - l->table_n;
        ssize_t n = send(l->fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 1 : -errno;
        l->table_n += (size_t)n;
    }
    return 0;
}

int er_mesh_step_table(struct er_mesh *mesh, struct er_error *err)
{
    int rc;

    if (!mesh->table_known && mesh->come_n == mesh->config.size) {
        rc = er_mesh_settle(mesh, err);
        if (rc == 0)
            rc = make_table(mesh, err);
        if (rc < 0)
            return rc;
    }
    if (!mesh->table_known) {
        say_who_is_missing(mesh);
        return 0;
    }
    for (int i = 1; i < mesh->config.size; i++) {
        if (mesh->peer[i].link[ER_MESH_CONTROL].state != LINK_TABLE)
            continue;
        rc = send_table(mesh, i);
        if (rc == 0)
            rc = er_mesh_accepted(mesh, i, ER_MESH_CONTROL);
        if (rc < 0)
            return er_error_set(err, ER_E_PEER_LOST,
                                "rank %d closed its connection while connecting", i);
    }
    return 0;
}

/* ---- the others ---- */

static int parse_table(struct er_mesh *mesh, struct er_error *err)
{
    const char *at = mesh->table, *end = at + mesh->table_bytes;
    int rc;

    for (int i = 0; i < mesh->config.size; i++) {
        const char *line = memchr(at, '\n', (size_t)(end - at));

        if (!line)
            return er_error_set(err, ER_E_PROTOCOL, "the table of rank 0 ends at rank %d", i);
        rc = er_host_record_parse(&mesh->peer[i].rec, at, (size_t)(line - at), err);
        if (rc < 0)
            return er_error_wrap(err, rc, "address of rank %d", i);
        at = line + 1;
    }
    return er_mesh_settle(mesh, err);
}

static int begin_table(struct er_mesh *mesh, const struct link *l, struct er_error *err)
{
    size_t most = (size_t)mesh->config.size * ER_HOST_RECORD_MAX;

    if (l->head.magic == ER_WIRE_MAGIC)
        return 0;
    if (l->head.magic != ER_WIRE_TABLE || l->head.bytes == 0 || l->head.bytes > most)
        return er_error_set(err, ER_E_PROTOCOL, "rank 0 sent what is not a table of addresses");
    mesh->table_bytes = l->head.bytes;
    free(mesh->table);
    mesh->table = malloc(mesh->table_bytes);
    return mesh->table ? 1 : er_error_set(err, -ENOMEM, "addresses of all ranks: out of memory");
}

int er_mesh_receive_table(struct er_mesh *mesh, struct link *l, struct er_error *err)
{
    size_t head_n = sizeof(l->head);

    for (;;) {
        bool head = l->table_n < head_n;
        char *to = head ? (char *)&l->head + l->table_n : mesh->table + l->table_n - head_n;
        size_t left = head ? head_n - l->table_n : head_n + mesh->table_bytes - l->table_n;
        ssize_t n = recv(l->fd, to, left, MSG_DONTWAIT);

        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR) ? 1 : -ECONNRESET;
        l->table_n += (size_t)n;
        if (head && l->table_n == head_n) {
            int rc = begin_table(mesh, l, err);

            if (rc <= 0)
                return rc;
        } else if (!head && l->table_n == head_n + mesh->table_bytes) {
            return parse_table(mesh, err);
        }
    }
}
