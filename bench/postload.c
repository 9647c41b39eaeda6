/* postload: measure how many requests with bodies a server answers.
 *
 *   cc -O2 -o postload postload.c
 *   postload WHERE CONNECTIONS WARMUP_S SECONDS FILE...       keep CONNECTIONS requests in flight, then report
 *
 * WHERE: a port of 127.0.0.1, or the path of a unix socket. FILE: one whole request, head and body; connections send the
 * files in turn. The next request goes out as soon as the last answer is complete; what ends during WARMUP_S is not
 * counted. An answer counts when its status is 200; any other, a broken connection or unreadable framing is an error and
 * opens a new connection, and the first one's head is shown. Figures are one JSON line. Bounded by WARMUP_S + SECONDS.
 */
#include "load.h"
#include <sys/stat.h>
#include <sys/un.h>

enum { MAX_CONNECTIONS = 1024, MAX_FILES = 256, MAX_SAMPLES = 1 << 22 };
struct request { char *text; long length; };
struct connection { int fd, waiting; long unsent; const struct request *asks; uint64_t sent_at; struct answer answer; };
static struct request requests[MAX_FILES];
static struct connection connections[MAX_CONNECTIONS];
static int num_requests, turn, poller;
static char bulk[1 << 18], complaint[160];
static const char *where;

static void load(const char *path) {
    struct stat found;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &found)) die(path);
    struct request *r = &requests[num_requests++];
    r->length = found.st_size;
    if (!(r->text = malloc(r->length + 1)) || read(fd, r->text, r->length) != r->length) die(path);
    close(fd);
}

static int push(struct connection *c, int id) { /* what fits of the request; -1: the connection is broken */
    while (c->unsent) {
        ssize_t sent = send(c->fd, c->asks->text + c->asks->length - c->unsent, c->unsent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return -1;
        if (sent < 0) break;
        c->unsent -= sent;
    }
    if (c->waiting == (c->unsent > 0)) return 0;
    c->waiting = c->unsent > 0;
    struct epoll_event e = {.events = c->waiting ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.u32 = id};
    return epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static int ask(struct connection *c, int id) {
    fresh(&c->answer);
    c->asks = &requests[turn++ % num_requests];
    c->unsent = c->asks->length;
    c->sent_at = now_ns();
    return push(c, id);
}

static void open_connection(int id) {
    struct connection *c = &connections[id];
    int is_unix = where[0] == '/', failed;
    struct sockaddr_in port = loopback(atoi(where));
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    strncpy(path.sun_path, where, sizeof path.sun_path - 1);
    c->fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    failed = is_unix ? connect(c->fd, (void *)&path, sizeof path) : connect(c->fd, (void *)&port, sizeof port);
    if (failed) die("connect");
    if (!is_unix) nodelay(c->fd);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->waiting = 0;
    watch(poller, c->fd, id);
    ask(c, id);
}

static void measure(int num_connections, double warmup_s, double seconds) {
    static struct epoll_event events[MAX_CONNECTIONS];
    uint64_t *latency = malloc(sizeof *latency * MAX_SAMPLES);
    if (!latency) die("memory");
    poller = epoll_create1(0);
    for (int i = 0; i < num_connections; i++) open_connection(i);
    uint64_t begin = now_ns() + (uint64_t)(warmup_s * 1e9), end = begin + (uint64_t)(seconds * 1e9);
    long num_done = 0, num_errors = 0, num_bytes = 0;
    for (uint64_t now = now_ns(); now < end; now = now_ns()) {
        int n = epoll_wait(poller, events, MAX_CONNECTIONS, 100);
        for (int i = 0; i < n; i++) {
            int id = events[i].data.u32, verdict = 0;
            struct connection *c = &connections[id];
            if (events[i].events & EPOLLOUT && push(c, id)) verdict = -1;
            ssize_t got = verdict ? 0 : read(c->fd, bulk, sizeof bulk);
            if (got < 0 && errno == EAGAIN) continue;
            if (!verdict) verdict = got > 0 ? take(&c->answer, bulk, got) : -1;
            if (c->answer.status && (c->answer.status != 200 || (verdict > 0 && c->unsent))) verdict = -1;
            uint64_t t = now_ns();
            if (t >= begin && got > 0) num_bytes += got;
            if (verdict > 0 && t >= begin) {
                if (num_done < MAX_SAMPLES) latency[num_done] = t - c->sent_at;
                num_done++;
            }
            if (verdict > 0 && ask(c, id)) verdict = -1;
            if (verdict >= 0) continue;
            if (!num_errors++) snprintf(complaint, sizeof complaint, "%.*s", (int)strcspn(c->answer.head, "\r\""), c->answer.head);
            close(c->fd);
            open_connection(id);
        }
    }
    long kept = num_done < MAX_SAMPLES ? num_done : MAX_SAMPLES;
    qsort(latency, kept, sizeof *latency, ascending);
#define AT(p) (kept ? latency[(long)((kept - 1) * (p))] / 1e6 : -1.0)
    printf("{\"connections\":%d,\"requests\":%ld,\"requests_per_s\":%.2f,\"mib_per_s\":%.1f,\"errors\":%ld,\"complaint\":\"%s\",\"ms\":{\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f}}\n",
           num_connections, num_done, num_done / seconds, num_bytes / seconds / 1048576, num_errors, complaint, AT(0.5), AT(0.99), AT(1.0));
}

int main(int argc, char **argv) {
    int num_connections = argc > 5 ? atoi(argv[2]) : 0;
    if (num_connections < 1 || num_connections > MAX_CONNECTIONS || argc - 5 > MAX_FILES) {
        fprintf(stderr, "usage: postload PORT|SOCKET CONNECTIONS WARMUP_S SECONDS FILE...\n");
        return 2;
    }
    raise_limit();
    where = argv[1];
    for (int i = 5; i < argc; i++) load(argv[i]);
    measure(num_connections, atof(argv[3]), atof(argv[4]));
    return 0;
}
