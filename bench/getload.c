/* getload: measure how many requests a proxy answers, or how many bytes it passes.
 *
 *   cc -O2 -o getload getload.c
 *   getload origin PORT BYTES                                           answer every request until killed
 *   getload client PORT PATH CONNECTIONS WARMUP_S SECONDS [COOKIES]     keep CONNECTIONS requests in flight, then report
 *
 * The origin (127.0.0.1) answers each request head with text and keeps the connection: /N with N bytes, /head with the
 * length of the head that arrived, in decimal, any other path with BYTES bytes. /deaf and /sink are never answered: of
 * the one nothing behind the head is read, of the other everything. The client sends the next request on a connection as
 * soon as the last answer is complete; what ends during WARMUP_S is not counted. An answer counts when its status is 200;
 * any other, a broken connection or unreadable framing is an error and opens a new connection. COOKIES: so many bytes of
 * cookies go with each request. Figures are one JSON line. Loopback only; bounded by WARMUP_S + SECONDS.
 */
#include "load.h"

enum { MAX_FDS = 16384, MAX_CONNECTIONS = 1024, MAX_SMALL = 65536, MAX_SAMPLES = 1 << 24, MAX_COOKIES = 16384 };
static char bulk[1 << 18]; /* read into, or full of 'x' */

/* ---- origin ---- */

struct asked { int matched, used, sunk; long head, todo; char line[64]; }; /* todo: bytes of the answer still to be sent */
static struct asked asked[MAX_FDS];
static int poller;

static void interest(int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.u32 = fd};
    epoll_ctl(poller, EPOLL_CTL_MOD, fd, &e);
}

static int push(int fd) { /* what fits of the body; -1: the connection is broken */
    struct asked *q = &asked[fd];
    while (q->todo) {
        ssize_t sent = send(fd, bulk, q->todo < (long)sizeof bulk ? q->todo : (long)sizeof bulk, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        q->todo -= sent;
    }
    return 0;
}

static int answer(int fd, const char *usual, int usual_length) {
    struct asked *q = &asked[fd];
    char text[256];
    q->line[q->used] = 0;
    const char *path = strchr(q->line, ' ');
    path = path ? path + 1 : "";
    if (!strncmp(path, "/deaf", 5)) {
        int few = 65536;
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
        interest(fd, EPOLLRDHUP);
        return 0;
    }
    if (!strncmp(path, "/sink", 5)) { q->sunk = 1; return 0; }
    int is_head = !strncmp(path, "/head", 5);
    if (!is_head && !(path[0] == '/' && path[1] >= '0' && path[1] <= '9'))
        return send(fd, usual, usual_length, MSG_NOSIGNAL) == usual_length ? 0 : -1;
    char said[32];
    long length = is_head ? snprintf(said, sizeof said, "%ld", q->head) : atol(path + 1);
    int n = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %ld\r\n\r\n%s", length, is_head ? said : "");
    struct iovec parts[2] = {{text, n}, {bulk, is_head ? 0 : length < (long)sizeof bulk ? length : (long)sizeof bulk}};
    ssize_t sent = writev(fd, parts, 2);
    if (sent < n) return -1;
    q->todo = is_head ? 0 : length - (sent - n);
    if (push(fd)) return -1;
    if (q->todo) interest(fd, EPOLLIN | EPOLLOUT);
    return 0;
}

static void origin(int port, int num_bytes) {
    static char request[65536], usual[MAX_SMALL];
    static struct epoll_event events[256];
    static const char blank[] = "\r\n\r\n";
    if (num_bytes < 0 || num_bytes > MAX_SMALL - 256) exit(2);
    memset(bulk, 'x', sizeof bulk);
    int length = snprintf(usual, 256, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", num_bytes);
    memset(usual + length, 'x', num_bytes);
    length += num_bytes;

    int listener = listen_on(port);
    poller = epoll_create1(0);
    watch(poller, listener, listener);
    for (;;) {
        int n = epoll_wait(poller, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.u32;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MAX_FDS) { close(fd); continue; }
                    nodelay(fd);
                    memset(&asked[fd], 0, sizeof asked[fd]);
                    watch(poller, fd, fd);
                }
                continue;
            }
            struct asked *q = &asked[fd];
            if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) { close(fd); continue; }
            if (events[i].events & EPOLLOUT) {
                if (push(fd)) { close(fd); continue; }
                if (!q->todo) interest(fd, EPOLLIN);
            }
            if (!(events[i].events & EPOLLIN)) continue;
            ssize_t got = read(fd, request, sizeof request);
            if (got < 0 && errno == EAGAIN) continue;
            int broken = got <= 0;
            for (ssize_t k = 0; k < got && !broken && !q->sunk; k++) {
                q->head++;
                if (q->used < (int)sizeof q->line - 1) q->line[q->used++] = request[k];
                q->matched = request[k] == blank[q->matched] ? q->matched + 1 : request[k] == '\r';
                if (q->matched < 4) continue;
                int is_deaf = strncmp(q->line, "POST /deaf", 10) == 0;
                broken = q->todo || answer(fd, usual, length); /* nobody here pipelines */
                q->matched = q->used = 0;
                q->head = 0;
                if (is_deaf) break;
            }
            if (broken) close(fd);
        }
    }
}

/* ---- client ---- */

struct connection { int fd; uint64_t sent_at; struct answer answer; };
static struct connection *connections;
static char request[MAX_COOKIES + 2048];
static int request_length, target_port;

static void ask(struct connection *c) {
    fresh(&c->answer);
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

static void compose(int port, const char *path, int cookies) {
    int n = snprintf(request, 1024, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: getload\r\nAccept: */*\r\n", path, port);
    if (cookies) { /* as a browser that has visited the whole site: cookies of 64 bytes, and one to keep */
        n += sprintf(request + n, "Cookie: session=0123456789abcdef");
        for (int i = 0, left = cookies - 32; left >= 70; i++, left -= 70)
            n += sprintf(request + n, "; t%03d=%.*s", i % 1000, 63, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-");
        n += sprintf(request + n, "\r\n");
    }
    n += sprintf(request + n, "\r\n");
    request_length = n;
}

static void client(int port, int num_connections, double warmup_s, double seconds) {
    static struct epoll_event events[MAX_CONNECTIONS];
    uint64_t *latency = malloc(sizeof *latency * MAX_SAMPLES);
    connections = calloc(num_connections, sizeof *connections);
    if (!latency || !connections) die("memory");
    target_port = port;
    poller = epoll_create1(0);
    for (int i = 0; i < num_connections; i++) open_connection(i);

    uint64_t begin = now_ns() + (uint64_t)(warmup_s * 1e9), end = begin + (uint64_t)(seconds * 1e9);
    long num_done = 0, num_errors = 0, num_bytes = 0;
    for (uint64_t now = now_ns(); now < end; now = now_ns()) {
        int n = epoll_wait(poller, events, MAX_CONNECTIONS, 100);
        for (int i = 0; i < n; i++) {
            int id = events[i].data.u32;
            struct connection *c = &connections[id];
            ssize_t got = read(c->fd, bulk, sizeof bulk);
            if (got < 0 && errno == EAGAIN) continue;
            int verdict = got > 0 ? take(&c->answer, bulk, got) : -1;
            if (c->answer.status && c->answer.status != 200) verdict = -1;
            uint64_t t = now_ns();
            if (t >= begin && got > 0) num_bytes += got;
            if (verdict == 0) continue;
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
    printf("{\"connections\":%d,\"requests\":%ld,\"requests_per_s\":%.0f,\"mib_per_s\":%.1f,\"errors\":%ld,\"ms\":{\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f}}\n",
           num_connections, num_done, num_done / seconds, num_bytes / seconds / 1048576, num_errors, AT(0.5), AT(0.99), AT(1.0));
}

int main(int argc, char **argv) {
    raise_limit();
    int cookies = argc == 8 ? atoi(argv[7]) : 0;
    if (argc == 4 && !strcmp(argv[1], "origin")) origin(atoi(argv[2]), atoi(argv[3]));
    else if ((argc == 7 || argc == 8) && !strcmp(argv[1], "client") && atoi(argv[4]) > 0 && atoi(argv[4]) <= MAX_CONNECTIONS && cookies >= 0 && cookies <= MAX_COOKIES) {
        compose(atoi(argv[2]), argv[3], cookies);
        client(atoi(argv[2]), atoi(argv[4]), atof(argv[5]), atof(argv[6]));
    } else {
        fprintf(stderr, "usage: getload origin PORT BYTES | client PORT PATH CONNECTIONS WARMUP_S SECONDS [COOKIES]\n");
        return 2;
    }
    return 0;
}
