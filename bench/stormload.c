/* stormload: measure how much load reaches a failing upstream through a proxy.
 *
 *   cc -O2 -o stormload stormload.c
 *   stormload origin CONTROL_PORT PORT PORT FAIL_PERCENT WORK_US SLOWDOWN RAMP_S    fail, slow down and count, until killed
 *   stormload client PORT CLIENTS INTERVAL_MS SECONDS                               offer load, then report
 *
 * The origin is two servers (127.0.0.1). Of the requests that reach them FAIL_PERCENT fail, by equal shares: closed without
 * an answer, reset, 503. The others are answered after WORK_US times the number of requests that the server works on,
 * times a factor that grows from 1 to SLOWDOWN in RAMP_S. Work goes on when nobody waits for it any more. On
 * CONTROL_PORT, /reset starts the ramp and the counts again and /count tells the counts; neither ever fails.
 *
 * Each client offers one request per INTERVAL_MS, or when its last one has ended if that is later, so that a fast refusal
 * offers no more. What the origin answered carries X-Origin: other refusals are the proxy's own. Figures are one JSON
 * line. Loopback only; bounded by SECONDS, and GRACE_S for the last answers.
 */
#include "load.h"

enum { MAX_FDS = 16384, MAX_CLIENTS = 1024, MAX_SAMPLES = 1 << 20, GRACE_S = 5 };
static int poller;

/* ---- origin ---- */

struct asked { int server, matched, used, working, gone; uint64_t due; char line[32]; };
static struct asked asked[MAX_FDS];
static int load[3]; /* requests in work, by server; the third is the control port */
static long num_requests, num_closed, num_reset, num_refused, num_good;
static uint64_t begun_at, seed = 88172645463325252ull;

static double draw(void) { /* xorshift64: the same failures in every run */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) / 9007199254740992.0;
}

static void say(int fd, const char *status, const char *text) {
    char out[512];
    int n = snprintf(out, sizeof out, "HTTP/1.1 %s\r\nX-Origin: 1\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(text), text);
    if (send(fd, out, n, MSG_NOSIGNAL) != n) return;
}

static void drop(int fd, int reset) {
    struct linger now = {1, 0};
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static void control(int fd, const char *line) {
    char text[256];
    if (strstr(line, "/reset")) {
        num_requests = num_closed = num_reset = num_refused = num_good = 0;
        begun_at = now_ns();
    }
    snprintf(text, sizeof text, "{\"requests\":%ld,\"good\":%ld,\"closed\":%ld,\"reset\":%ld,\"refused\":%ld}", num_requests, num_good, num_closed, num_reset, num_refused);
    say(fd, "200 OK", text);
}

/* 1: the connection is gone */
static int decide(int fd, double fail, double work_ns, double slowdown, double ramp_ns) {
    struct asked *q = &asked[fd];
    if (q->server == 2) { control(fd, q->line); return 0; }
    num_requests++;
    double d = draw();
    if (d < fail / 3) { num_closed++; drop(fd, 0); return 1; }
    if (d < fail * 2 / 3) { num_reset++; drop(fd, 1); return 1; }
    if (d < fail) { num_refused++; say(fd, "503 Service Unavailable", "busy"); return 0; }
    uint64_t now = now_ns();
    double passed = (now - begun_at) / ramp_ns, factor = 1 + (slowdown - 1) * (passed < 1 ? passed : 1);
    q->working = 1;
    q->due = now + (uint64_t)(work_ns * ++load[q->server] * factor);
    return 0;
}

static void origin(const int *ports, double fail, double work_ns, double slowdown, double ramp_ns) {
    static char request[65536];
    static struct epoll_event events[256];
    static const char blank[] = "\r\n\r\n";
    int listeners[3], top = 0;
    poller = epoll_create1(0);
    for (int s = 0; s < 3; s++) {
        listeners[s] = listen_on(ports[s]);
        watch(poller, listeners[s], listeners[s]);
    }
    begun_at = now_ns();
    for (;;) {
        int n = epoll_wait(poller, events, 256, 1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.u32, server = -1;
            for (int s = 0; s < 3; s++) if (fd == listeners[s]) server = s;
            if (server >= 0) {
                int c;
                while ((c = accept4(fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (c >= MAX_FDS) { close(c); continue; }
                    nodelay(c);
                    memset(&asked[c], 0, sizeof asked[c]);
                    asked[c].server = server;
                    if (c > top) top = c;
                    watch(poller, c, c);
                }
                continue;
            }
            struct asked *q = &asked[fd];
            ssize_t got = read(fd, request, sizeof request);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) {
                if (q->working) { q->gone = 1; epoll_ctl(poller, EPOLL_CTL_DEL, fd, NULL); } /* closed once it is due */
                else close(fd);
                continue;
            }
            for (ssize_t k = 0; k < got; k++) {
                if (q->used < (int)sizeof q->line - 1) q->line[q->used++] = request[k];
                q->matched = request[k] == blank[q->matched] ? q->matched + 1 : request[k] == '\r';
                if (q->matched < 4) continue;
                q->line[q->used] = 0;
                q->matched = q->used = 0;
                if (decide(fd, fail, work_ns, slowdown, ramp_ns)) break;
            }
        }
        uint64_t now = now_ns();
        for (int fd = 0; fd <= top; fd++) {
            struct asked *q = &asked[fd];
            if (!q->working || q->due > now) continue;
            q->working = 0;
            load[q->server]--;
            if (q->gone) close(fd);
            else { num_good++; say(fd, "200 OK", "done"); }
        }
    }
}

/* ---- client ---- */

struct client { int fd, waiting; uint64_t sent_at, due; struct answer answer; };
static struct client *clients;
static char request[256];
static int request_length, target_port;

static int open_client(int id) {
    struct sockaddr_in a = loopback(target_port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&a, sizeof a)) { close(fd); return clients[id].fd = -1; }
    nodelay(fd);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    watch(poller, fd, id);
    return clients[id].fd = fd;
}

static void run(int port, int num_clients, uint64_t interval_ns, double seconds) {
    static struct epoll_event events[MAX_CLIENTS];
    static char data[65536];
    uint64_t *latency = malloc(sizeof *latency * MAX_SAMPLES);
    clients = calloc(num_clients, sizeof *clients);
    if (!latency || !clients) die("memory");
    target_port = port;
    poller = epoll_create1(0);
    request_length = snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: stormload\r\n\r\n", port);
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), last = end + GRACE_S * 1000000000ull;
    for (int i = 0; i < num_clients; i++) {
        clients[i].fd = -1;
        clients[i].due = begin + interval_ns * i / num_clients;
    }
    long offered = 0, good = 0, origin_refused = 0, proxy_refused = 0, broken = 0;
    int waiting = 0;
    for (uint64_t now = begin; now < end || (waiting && now < last); now = now_ns()) {
        for (int i = 0; i < num_clients && now < end; i++) {
            struct client *c = &clients[i];
            if (c->waiting || c->due > now) continue;
            offered++;
            c->sent_at = now;
            c->due = now + interval_ns;
            if ((c->fd < 0 && open_client(i) < 0) || send(c->fd, request, request_length, MSG_NOSIGNAL) != request_length) { broken++; continue; }
            fresh(&c->answer);
            c->waiting = 1;
            waiting++;
        }
        int n = epoll_wait(poller, events, MAX_CLIENTS, 1);
        for (int i = 0; i < n; i++) {
            struct client *c = &clients[events[i].data.u32];
            ssize_t got = read(c->fd, data, sizeof data);
            if (got < 0 && errno == EAGAIN) continue;
            int verdict = got > 0 && c->waiting ? take(&c->answer, data, got) : -1;
            if (verdict == 0) continue;
            if (c->waiting) {
                int ours = verdict > 0 && strcasestr(c->answer.head, "\r\nX-Origin:") != NULL;
                if (verdict < 0) broken++;
                else if (c->answer.status == 200) { if (good < MAX_SAMPLES) latency[good] = now_ns() - c->sent_at; good++; }
                else if (ours) origin_refused++;
                else proxy_refused++;
                c->waiting = 0;
                waiting--;
            }
            if (verdict < 0 || strcasestr(c->answer.head, "\r\nConnection: close")) { close(c->fd); c->fd = -1; }
        }
    }
    long kept = good < MAX_SAMPLES ? good : MAX_SAMPLES;
    qsort(latency, kept, sizeof *latency, ascending);
#define AT(p) (kept ? latency[(long)((kept - 1) * (p))] / 1e6 : -1.0)
    printf("{\"clients\":%d,\"offered\":%ld,\"good\":%ld,\"origin_refused\":%ld,\"proxy_refused\":%ld,\"broken\":%ld,\"unanswered\":%d,\"ms\":{\"p50\":%.3f,\"p99\":%.3f}}\n",
           num_clients, offered, good, origin_refused, proxy_refused, broken, waiting, AT(0.5), AT(0.99));
}

int main(int argc, char **argv) {
    raise_limit();
    if (argc == 9 && !strcmp(argv[1], "origin")) {
        int ports[3] = {atoi(argv[3]), atoi(argv[4]), atoi(argv[2])};
        origin(ports, atof(argv[5]) / 100, atof(argv[6]) * 1e3, atof(argv[7]), atof(argv[8]) * 1e9);
    } else if (argc == 6 && !strcmp(argv[1], "client") && atoi(argv[3]) > 0 && atoi(argv[3]) <= MAX_CLIENTS)
        run(atoi(argv[2]), atoi(argv[3]), (uint64_t)(atof(argv[4]) * 1e6), atof(argv[5]));
    else {
        fprintf(stderr, "usage: stormload origin CONTROL_PORT PORT PORT FAIL_PERCENT WORK_US SLOWDOWN RAMP_S | client PORT CLIENTS INTERVAL_MS SECONDS\n");
        return 2;
    }
    return 0;
}
