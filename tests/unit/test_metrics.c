/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics and the admin listener: rows become correct Prometheus text, sums are exact, and each route answers what it promises.
 * The store behind them is a stand-in with one odd device, so that every value and every escape is under the test's control.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "server/admin.h"
#include "server/metrics.h"
#include "server/metrics_int.h"

/* ---- a stand-in for the store ------------------------------------------------------------------------------------------- */

struct store {
    struct store_histogram flush;
    struct store_histogram none;
};

uint32_t store_device_count(const struct store *store)
{
    (void)store;
    return 1;
}

void store_device_info(struct store *store, uint32_t index, struct store_device_info *out)
{
    (void)store;
    (void)index;
    *out = (struct store_device_info){.path = "/dev/q\"\\<b>",
                                      .state = STORE_DEVICE_SUSPECT,
                                      .size = 1000,
                                      .used = 400,
                                      .direct = true,
                                      .written_bytes = 7,
                                      .state_reason = "slow & late"};
}

const struct store_histogram *store_device_latency(struct store *store, uint32_t index,
                                                   enum store_latency kind)
{
    (void)index;
    return kind == STORE_LATENCY_FLUSH ? &store->flush : &store->none;
}

void store_stats(struct store *store, struct store_stats *out)
{
    *out = (struct store_stats){.objects = 12, .commit_latency = &store->flush};
}

/* ---- fixture ------------------------------------------------------------------------------------------------------------ */

static struct conf *conf;
static struct metrics *metrics;
static struct store store;

static void setup_at(uint16_t admin_port)
{
    char text[512];
    struct err err;
    snprintf(text, sizeof(text),
             "node: { data_dir: d, workers: 2 }\nstore: { devices: [ { path: p } ] }\n"
             "listeners:\n  - { name: a, protocol: s3, address: '127.0.0.1:9000' }\n"
             "  - { name: b, protocol: raw, address: '127.0.0.1:9001', bucket: cap, key_template: '{seq}' }\n"
             "admin: { address: '127.0.0.1:%u' }\n",
             admin_port);
    cr_assert_eq(conf_parse("t", text, strlen(text), &conf, &err), 0, "%s", err.text);
    cr_assert_eq(metrics_open(conf, &metrics), 0);
    memset(&store, 0, sizeof(store));
}

static void setup(void)
{
    setup_at(9600);
}

static void teardown(void)
{
    metrics_close(metrics);
    conf_free(conf);
}

static void expect_line(const char *text, const char *line)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "\n%s\n", line);
    cr_expect(strstr(text, whole) != NULL, "no line: %s", line);
}

static char *render(void)
{
    size_t len = 0;
    char *text = metrics_text(metrics, &len);
    cr_assert_not_null(text);
    cr_assert_eq(strlen(text), len);
    return text;
}

TestSuite(metrics, .init = setup, .fini = teardown);

/* ---- the table ---------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

Test(metrics, names_follow_the_conventions_and_occur_once)
{
    for (size_t i = 0; i < metrics_row_count; i++) {
        const struct metrics_row *row = &metrics_rows[i];
        cr_expect_eq(ends_with(row->name, "_total"), row->kind == METRICS_COUNTER, "%s", row->name);
        cr_expect(row->help[0] != '\0' && ends_with(row->help, "."), "%s: help is a sentence", row->name);
        if (strcmp(row->unit, "seconds") == 0) {
            cr_expect(strstr(row->name, "_seconds") != NULL, "%s: the unit is in the name", row->name);
        }
        if (strcmp(row->unit, "bytes") == 0) {
            cr_expect(strstr(row->name, "_bytes") != NULL, "%s: the unit is in the name", row->name);
        }
        for (size_t j = 0; j < i; j++) {
            cr_expect(strcmp(row->name, metrics_rows[j].name) != 0, "%s twice", row->name);
        }
    }
}

/* ---- the text ------------------------------------------------------------------------------------------------------------ */

Test(metrics, cells_of_two_workers_are_summed_per_listener)
{
    metrics_add(&metrics_listener(metrics, 0, 0)->payload_received_bytes, 5);
    metrics_add(&metrics_listener(metrics, 1, 0)->payload_received_bytes, 7);
    metrics_add(&metrics_listener(metrics, 1, 1)->payload_received_bytes, 100);
    metrics_request(metrics_listener(metrics, 0, 0), S3_OP_PUT_OBJECT, 200);
    metrics_request(metrics_listener(metrics, 1, 0), S3_OP_PUT_OBJECT, 204);
    metrics_request(metrics_listener(metrics, 1, 0), S3_OP_PUT_OBJECT, 507);
    metrics_request(metrics_listener(metrics, 1, 1), METRICS_OP_RAW_PUT, 0);
    metrics_plan_set(metrics, 0, "socket", "loopback");
    char *text = render();
    expect_line(text,
                "penstock_payload_received_bytes_total{listener=\"a\",protocol=\"s3\",path=\"socket\"} 12");
    expect_line(text,
                "penstock_payload_received_bytes_total{listener=\"b\",protocol=\"raw\",path=\"none\"} 100");
    expect_line(text, "penstock_requests_total{listener=\"a\",protocol=\"s3\",path=\"socket\",operation="
                      "\"PutObject\",status=\"2xx\"} 2");
    expect_line(text, "penstock_requests_total{listener=\"a\",protocol=\"s3\",path=\"socket\",operation="
                      "\"PutObject\",status=\"5xx\"} 1");
    expect_line(text, "penstock_requests_total{listener=\"b\",protocol=\"raw\",path=\"none\",operation="
                      "\"RawPut\",status=\"lost\"} 1");
    expect_line(text, "# TYPE penstock_requests_total counter");
    cr_expect_null(strstr(text, "operation=\"CopyObject\""), "an operation that never happened has no line");
    cr_expect_null(strstr(text, "penstock_device_state"), "without a store there are no device metrics");
    free(text);
}

Test(metrics, a_histogram_is_cumulative_and_its_count_is_its_last_bucket)
{
    struct store_histogram *histogram = &metrics_listener(metrics, 0, 0)->durable_latency;
    metrics_observe(histogram, 0);
    metrics_observe(histogram, 100 * 1000ULL);                 /* 100 us: below 128 us */
    metrics_observe(histogram, 3 * 1000ULL * 1000 * 1000);     /* 3 s: below 4.19 s */
    metrics_observe(histogram, 10000 * 1000ULL * 1000 * 1000); /* hours: only +Inf */
    char *text = render();
    const char *labels = "{listener=\"a\",protocol=\"s3\",path=\"none\"";
    static const char *const ends[] = {"le=\"3.2e-05\"} 1",  "le=\"6.4e-05\"} 1",  "le=\"0.000128\"} 2",
                                       "le=\"2.097152\"} 2", "le=\"4.194304\"} 3", "le=\"67.108864\"} 3",
                                       "le=\"+Inf\"} 4"};
    char line[256];
    for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
        snprintf(line, sizeof(line), "penstock_durable_latency_seconds_bucket%s,%s", labels, ends[i]);
        expect_line(text, line);
    }
    snprintf(line, sizeof(line), "penstock_durable_latency_seconds_count%s} 4", labels);
    expect_line(text, line);
    snprintf(line, sizeof(line), "penstock_durable_latency_seconds_sum%s} 10003.000100", labels);
    expect_line(text, line);
    free(text);
}

Test(metrics, devices_and_store_are_shown_and_odd_paths_escaped)
{
    metrics_store_set(metrics, &store);
    char *text = render();
    expect_line(text, "penstock_device_state{device=\"/dev/q\\\"\\\\<b>\"} 1");
    expect_line(text, "penstock_device_free_bytes{device=\"/dev/q\\\"\\\\<b>\"} 600");
    expect_line(text, "penstock_device_direct{device=\"/dev/q\\\"\\\\<b>\"} 1");
    expect_line(text, "penstock_device_fragments_ok{device=\"/dev/q\\\"\\\\<b>\"} 0");
    expect_line(text, "penstock_device_written_bytes_total{device=\"/dev/q\\\"\\\\<b>\"} 7");
    expect_line(text, "penstock_objects 12");
    expect_line(text, "penstock_commit_wait_seconds_count 0");
    free(text);
}

Test(metrics, counters_of_a_receive_instance_stay_when_it_is_taken_out)
{
    struct rx rx = {.info = {.buffer_size = 131072, .buffers_total = 512}};
    metrics_rx_set(metrics, 0, 0, &rx);
    metrics_add(&rx.stats.conns_opened, 3);
    metrics_add(&rx.stats.conns_open, 2);
    char *text = render();
    expect_line(text, "penstock_connections_open{listener=\"a\",protocol=\"s3\",path=\"none\"} 2");
    expect_line(text, "penstock_rx_buffer_size_bytes{listener=\"a\",protocol=\"s3\",path=\"none\"} 131072");
    free(text);
    metrics_rx_set(metrics, 0, 0, NULL);
    memset(&rx, 0xff, sizeof(rx)); /* must not be read any more */
    text = render();
    expect_line(text, "penstock_connections_opened_total{listener=\"a\",protocol=\"s3\",path=\"none\"} 3");
    expect_line(text, "penstock_connections_open{listener=\"a\",protocol=\"s3\",path=\"none\"} 0");
    free(text);
}

/* A worker that has done much and sleeps now: nothing of it turns, and what is shown is current all the same. */
static sem_t worker_has_worked, worker_may_end;

static void *worker_that_sleeps(void *ctx)
{
    metrics_thread_begin(ctx, 1);
    while (clock_cpu_ns(clock_thread_cpu()) < 2 * NS_PER_MS) {
    }
    cr_assert(sem_post(&worker_has_worked) == 0);
    cr_assert(sem_wait(&worker_may_end) == 0);
    metrics_thread_end(ctx, 1);
    return NULL;
}

static double value_of(const char *text, const char *sample)
{
    const char *at = strstr(text, sample);
    cr_assert(at != NULL, "no sample: %s", sample);
    return strtod(at + strlen(sample), NULL);
}

Test(metrics, a_sleeping_worker_is_shown_as_it_is, .timeout = 60)
{
    static const char sample[] = "\npenstock_worker_cpu_seconds_total{worker=\"1\"} ";
    struct rx rx = {.info = {.buffer_size = 4096}};
    pthread_t thread;
    cr_assert(sem_init(&worker_has_worked, 0, 0) == 0 && sem_init(&worker_may_end, 0, 0) == 0);
    metrics_rx_set(metrics, 1, 0, &rx);
    cr_assert(pthread_create(&thread, NULL, worker_that_sleeps, metrics) == 0);
    cr_assert(sem_wait(&worker_has_worked) == 0);
    metrics_add(&rx.stats.conns_handed, 4);
    char *text = render();
    expect_line(text, "penstock_worker_accept_moved_total{worker=\"0\"} 0");
    expect_line(text, "penstock_worker_accept_moved_total{worker=\"1\"} 4");
    cr_expect(value_of(text, sample) >= 0.002);
    free(text);
    cr_assert(sem_post(&worker_may_end) == 0);
    cr_assert(pthread_join(thread, NULL) == 0);
    metrics_rx_set(metrics, 1, 0, NULL);
    text = render();
    expect_line(text, "penstock_worker_accept_moved_total{worker=\"1\"} 4");
    cr_expect(value_of(text, sample) >= 0.002, "what it had used stays");
    free(text);
}

Test(metrics, copied_bytes_are_claimed_once)
{
    _Atomic uint64_t port[STORE_COPY_REASONS] = {0};
    uint64_t seen[STORE_COPY_REASONS] = {0};
    metrics_port_set(metrics, 1, port);
    metrics_add(&port[STORE_COPY_TAIL], 100);
    metrics_copied_claim(metrics_listener(metrics, 1, 0), port, seen);
    metrics_add(&port[STORE_COPY_TAIL], 20);
    metrics_copied_claim(metrics_listener(metrics, 1, 1), port, seen);
    metrics_copied_claim(metrics_listener(metrics, 1, 1), port, seen);
    char *text = render();
    expect_line(
        text,
        "penstock_copied_bytes_total{listener=\"a\",protocol=\"s3\",path=\"none\",reason=\"tail\"} 100");
    expect_line(
        text,
        "penstock_copied_bytes_total{listener=\"b\",protocol=\"raw\",path=\"none\",reason=\"tail\"} 20");
    expect_line(text, "penstock_worker_copied_bytes_total{worker=\"1\",reason=\"tail\"} 120");
    cr_expect_null(strstr(text, "penstock_worker_copied_bytes_total{worker=\"0\""), "worker 0 has no port");
    free(text);
}

Test(metrics, durations_are_printed_in_seconds)
{
    metrics_add(&metrics_worker(metrics, 1)->cpu_ns, 1500000001);
    char *text = render();
    expect_line(text, "penstock_worker_cpu_seconds_total{worker=\"1\"} 1.500000001");
    free(text);
}

Test(metrics, the_status_page_escapes_what_it_shows)
{
    metrics_store_set(metrics, &store);
    metrics_plan_set(metrics, 0, "socket", "zcrx: no <NIC>");
    size_t len = 0;
    char *page = metrics_status_page(metrics, &len);
    cr_assert_not_null(page);
    cr_expect_not_null(strstr(page, "zcrx: no &lt;NIC&gt;"));
    cr_expect_not_null(strstr(page, "/dev/q&quot;\\&lt;b&gt;"));
    cr_expect_not_null(strstr(page, "suspect</td><td>slow &amp; late"));
    free(page);
}

/* ---- the admin listener ------------------------------------------------------------------------------------------------- */

static uint16_t free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    return ntohs(at.sin_port);
}

struct hooks_seen {
    int ready;
    const char *why; /* what is told beside it; NULL: nothing */
    int drains;
};

static int hook_ready(void *ctx, struct err *why)
{
    const struct hooks_seen *seen = ctx;
    return seen->why == NULL ? seen->ready : err_set(why, seen->ready, "%s", seen->why);
}

static int hook_healthy(void *ctx, struct err *why)
{
    (void)ctx;
    (void)why;
    return 0;
}

static void hook_drain(void *ctx)
{
    ((struct hooks_seen *)ctx)->drains++;
}

/* Sends one request and returns the whole answer (static buffer). */
static const char *ask(uint16_t port, const char *method_and_path, const char *rest)
{
    static char answer[256 * 1024];
    char request[512];
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    int len = snprintf(request, sizeof(request), "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s",
                       method_and_path, rest);
    cr_assert_eq(write(fd, request, (size_t)len), len);
    size_t used = 0;
    for (;;) {
        ssize_t got = read(fd, answer + used, sizeof(answer) - 1 - used);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    answer[used] = '\0';
    close(fd);
    return answer;
}

static void expect_answer(const char *answer, const char *status, const char *body)
{
    cr_expect(strncmp(answer + strlen("HTTP/1.1 "), status, strlen(status)) == 0, "%s: %.60s", status,
              answer);
    const char *at = strstr(answer, "\r\n\r\n");
    cr_assert_not_null(at);
    cr_expect_str_eq(at + 4, body);
}

Test(admin, each_route_answers_what_it_promises, .init = NULL, .fini = teardown)
{
    uint16_t port = free_port();
    setup_at(port);
    struct hooks_seen seen = {.ready = -1, .why = "still recovering"};
    struct admin_hooks hooks = {
        .ctx = &seen, .ready = hook_ready, .healthy = hook_healthy, .drain = hook_drain};
    struct admin *admin = NULL;
    struct err err;
    cr_assert_eq(admin_open(conf, metrics, &hooks, &admin, &err), 0, "%s", err.text);

    expect_answer(ask(port, "GET /readyz", "\r\n"), "503", "still recovering\n");
    cr_expect_not_null(strstr(ask(port, "GET /metrics", "\r\n"), "\npenstock_ready 0\n"));
    seen = (struct hooks_seen){.ready = 0, .why = "but b is deaf"};
    expect_answer(ask(port, "GET /readyz", "\r\n"), "200", "ok\nbut b is deaf\n");
    seen.why = NULL;
    expect_answer(ask(port, "GET /readyz", "\r\n"), "200", "ok\n");
    expect_answer(ask(port, "GET /healthz", "\r\n"), "200", "ok\n");
    expect_answer(ask(port, "HEAD /healthz", "\r\n"), "200", "");
    cr_expect_not_null(strstr(ask(port, "GET /metrics", "\r\n"), "\npenstock_ready 1\n"));
    cr_expect_not_null(strstr(ask(port, "GET /", "\r\n"), "<h2>Listeners</h2>"));

    expect_answer(ask(port, "GET /drain", "\r\n"), "405", "use POST\n");
    expect_answer(ask(port, "POST /drain", "Origin: http://evil\r\nContent-Length: 0\r\n\r\n"), "403",
                  "not from a web page\n");
    cr_expect_eq(seen.drains, 0);
    expect_answer(ask(port, "POST /drain", "Content-Length: 0\r\n\r\n"), "202", "draining\n");
    cr_expect_eq(seen.drains, 1);

    expect_answer(ask(port, "POST /log-level", "Content-Length: 6\r\n\r\nerror\n"), "200", "ok\n");
    cr_expect_eq(log_level_get(), LOG_ERROR);
    expect_answer(ask(port, "POST /log-level?level=warn", "Content-Length: 0\r\n\r\n"), "200", "ok\n");
    cr_expect_eq(log_level_get(), LOG_WARN);
    expect_answer(ask(port, "POST /log-level", "Content-Length: 5\r\n\r\nloud!"), "400",
                  "send debug, info, warn or error as the body or as ?level=\n");
    cr_expect(strncmp(ask(port, "GET /nothing", "\r\n"), "HTTP/1.1 404", 12) == 0);
    admin_close(admin);
}

Test(admin, a_taken_port_is_refused_with_its_address, .init = NULL, .fini = teardown)
{
    uint16_t port = free_port();
    setup_at(port);
    struct hooks_seen seen = {.ready = 0};
    struct admin_hooks hooks = {
        .ctx = &seen, .ready = hook_ready, .healthy = hook_healthy, .drain = hook_drain};
    struct admin *first = NULL;
    struct admin *second = NULL;
    struct err err;
    char expected[256];
    cr_assert_eq(admin_open(conf, metrics, &hooks, &first, &err), 0, "%s", err.text);
    cr_expect_lt(admin_open(conf, metrics, &hooks, &second, &err), 0);
    snprintf(expected, sizeof(expected),
             "admin 127.0.0.1:%u: cannot listen: Address already in use; change admin.address or stop what "
             "holds the port",
             port);
    cr_expect_str_eq(err.text, expected);
    cr_expect_null(second);
    admin_close(first);
}
