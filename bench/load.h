/* What the instruments share: time, loopback sockets, and an HTTP/1.1 answer that is judged as it arrives. */
#ifndef LOAD_H
#define LOAD_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static void nodelay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void raise_limit(void) {
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static void watch(int poller, int fd, uint32_t id) {
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = id};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in a = loopback(port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) die("listen");
    return listener;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* ---- an answer ---- */

enum { MAX_HEAD = 8192 };
struct answer {
    int have, status, chunked; /* have: bytes of the head; status: 0 until the head is complete */
    long left;                 /* of a body with a length */
    char tail[5];              /* of a chunked one, whose text is all 'x' */
    char head[MAX_HEAD + 1];
};

static void fresh(struct answer *a) {
    a->have = a->status = a->chunked = 0;
    a->left = 0;
    memset(a->tail, 0, sizeof a->tail);
}

/* 1: the answer is complete; 0: more is to come; -1: it is unreadable, or goes on behind its end */
static int take(struct answer *a, const char *data, ssize_t length) {
    if (!a->status) {
        int before = a->have, room = MAX_HEAD - before, copied = length < room ? length : room;
        memcpy(a->head + before, data, copied);
        a->head[a->have += copied] = 0;
        char *end = strstr(a->head, "\r\n\r\n");
        if (!end) return a->have < MAX_HEAD ? 0 : -1;
        if (strncmp(a->head, "HTTP/1.1 ", 9)) return -1;
        end[2] = 0; /* fields are searched in the head alone */
        a->have = end + 4 - a->head;
        a->status = atoi(a->head + 9);
        char *field = strcasestr(a->head, "\r\nContent-Length:");
        a->chunked = strcasestr(a->head, "\r\nTransfer-Encoding: chunked") != NULL;
        if (!field && !a->chunked) return -1;
        a->left = field ? atol(field + 17) : 0;
        data += a->have - before;
        length -= a->have - before;
    }
    if (a->chunked) {
        for (ssize_t k = length > 5 ? length - 5 : 0; k < length; k++) {
            memmove(a->tail, a->tail + 1, 4);
            a->tail[4] = data[k];
        }
        return !memcmp(a->tail, "0\r\n\r\n", 5);
    }
    a->left -= length;
    return a->left < 0 ? -1 : a->left == 0;
}
#endif
