/* getload: measure how many small requests a proxy answers.
 *
 *   cc -O2 -o getload getload.c
 *   getload origin PORT BYTES                                   answer every request until killed
 *   getload client PORT PATH CONNECTIONS WARMUP_S SECONDS       keep CONNECTIONS requests in flight, then report
 *
 * The origin (127.0.0.1) answers each request head with BYTES bytes of text and keeps the connection. The client sends
 * the next request on a connection as soon as the last answer is complete; what ends during WARMUP_S is not counted.
 * An answer counts when its status is 200; any other, a broken connection or unreadable framing is an error and opens a new
 * connection. Figures are one JSON line. Loopback only; bounded by WARMUP_S + SECONDS.
 */
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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 4096, MAX_CONNECTIONS = 1024, MAX_ANSWER = 65536, MAX_SAMPLES = 1 << 24 };

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

static void watch(int poller, int fd, uint32_t id) {
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = id};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
}

/* ---- origin ---- */

static void origin(int port, int num_bytes) {
    static int matched[MAX_FDS]; /* how much of the blank line that ends a head each connection has sent */
    static char request[65536], answer[MAX_ANSWER];
    static struct epoll_event events[256];
    static const char blank[] = "\r\n\r\n";
    if (num_bytes < 0 || num_bytes > MAX_ANSWER - 256) exit(2);
    int length = snprintf(answer, 256, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", num_bytes);
    memset(answer + length, 'x', num_bytes);
    length += num_bytes;

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1, poller = epoll_create1(0);
    struct sockaddr_in a = loopback(port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 1024)) die("listen");
    watch(poller, listener, listener);
    for (;;) {
        int n = epoll_wait(poller, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.u32;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MAX_FDS) { close(fd); continue; }
                    nodelay(fd);
                    matched[fd] = 0;
                    watch(poller, fd, fd);
                }
                continue;
            }
            ssize_t got = read(fd, request, sizeof request);
            if (got < 0 && errno == EAGAIN) continue;
            int broken = got <= 0;
            for (ssize_t k = 0; k < got && !broken; k++) {
                matched[fd] = request[k] == blank[matched[fd]] ? matched[fd] + 1 : request[k] == '\r';
                if (matched[fd] == 4) {
                    matched[fd] = 0;
                    broken = send(fd, answer, length, MSG_NOSIGNAL) != length;
                }
            }
            if (broken) close(fd);
        }
    }
}

/* ---- client ---- */

struct connection { int fd, have; uint64_t sent_at; char answer[MAX_ANSWER]; };
static struct connection *connections;
static char request[1024];
static int request_length, target_port, poller;

static void ask(struct connection *c) {
    c->have = 0;
    c->sent_at = now_ns();
    if (send(c->fd, request, request_length, MSG_NOSIGNAL) != request_length) c->sent_at = 0;
}

static void open_connection(int id) {
    struct connection *c = &connections[id];
    struct sockaddr_in a = loopback(target_port);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&a, sizeof a)) die("connect");
    nodelay(c->fd);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    watch(poller, c->fd, id);
    ask(c);
}

/* 1: the answer is complete and good; 0: more is to come; -1: an error */
static int judge(struct connection *c) {
    c->answer[c->have] = 0;
    char *end = strstr(c->answer, "\r\n\r\n");
    if (!end) return c->have < MAX_ANSWER - 1 ? 0 : -1;
    if (strncmp(c->answer, "HTTP/1.1 200", 12)) return -1;
    int head = end + 4 - c->answer;
    *end = 0; /* the field names are searched in the head alone */
    char *field = strcasestr(c->answer, "\r\nContent-Length:");
    int chunked = strcasestr(c->answer, "\r\nTransfer-Encoding: chunked") != NULL;
    *end = '\r';
    if (field) {
        int want = head + atoi(field + 17);
        return c->have == want ? 1 : c->have < want && want < MAX_ANSWER ? 0 : -1;
    }
    if (!chunked) return -1;
    return c->have - head >= 5 && !memcmp(c->answer + c->have - 5, "0\r\n\r\n", 5); /* the text is all 'x' */
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void client(int port, const char *path, int num_connections, double warmup_s, double seconds) {
    static struct epoll_event events[MAX_CONNECTIONS];
    uint64_t *latency = malloc(sizeof *latency * MAX_SAMPLES);
    connections = calloc(num_connections, sizeof *connections);
    if (!latency || !connections) die("memory");
    target_port = port;
    poller = epoll_create1(0);
    request_length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: getload\r\nAccept: */*\r\n\r\n", path, port);
    for (int i = 0; i < num_connections; i++) open_connection(i);

    uint64_t begin = now_ns() + (uint64_t)(warmup_s * 1e9), end = begin + (uint64_t)(seconds * 1e9);
    long num_done = 0, num_errors = 0;
    for (uint64_t now = now_ns(); now < end; now = now_ns()) {
        int n = epoll_wait(poller, events, MAX_CONNECTIONS, 100);
        for (int i = 0; i < n; i++) {
            int id = events[i].data.u32;
            struct connection *c = &connections[id];
            ssize_t got = read(c->fd, c->answer + c->have, MAX_ANSWER - 1 - c->have);
            if (got < 0 && errno == EAGAIN) continue;
            if (got > 0) c->have += got;
            int verdict = got > 0 ? judge(c) : -1;
            if (verdict == 0) continue;
            uint64_t t = now_ns();
            if (t >= begin && verdict > 0) {
                if (num_done < MAX_SAMPLES) latency[num_done] = t - c->sent_at;
                num_done++;
            }
            num_errors += verdict < 0;
            if (verdict > 0) ask(c);
            else { close(c->fd); open_connection(id); }
        }
    }
    long kept = num_done < MAX_SAMPLES ? num_done : MAX_SAMPLES;
    qsort(latency, kept, sizeof *latency, ascending);
#define AT(p) (kept ? latency[(long)((kept - 1) * (p))] / 1e6 : -1.0)
    printf("{\"connections\":%d,\"requests\":%ld,\"requests_per_s\":%.0f,\"errors\":%ld,\"ms\":{\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}}\n",
           num_connections, num_done, num_done / seconds, num_errors, AT(0.5), AT(0.99), AT(1.0));
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "origin")) origin(atoi(argv[2]), atoi(argv[3]));
    else if (argc == 7 && !strcmp(argv[1], "client") && atoi(argv[4]) > 0 && atoi(argv[4]) <= MAX_CONNECTIONS)
        client(atoi(argv[2]), argv[3], atoi(argv[4]), atof(argv[5]), atof(argv[6]));
    else {
        fprintf(stderr, "usage: getload origin PORT BYTES | client PORT PATH CONNECTIONS WARMUP_S SECONDS\n");
        return 2;
    }
    return 0;
}
