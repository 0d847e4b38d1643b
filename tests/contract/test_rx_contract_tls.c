/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of rx.h, run against TLS over the socket backend with OpenSSL clients: the same cases, because nothing above
 * the receive interface may notice the difference. They are the other program's source, built with another default; what only
 * TLS has follows.
 */
#define RX_BACKEND_DEFAULT "tls"
#include "test_rx_contract.c"

/* ---- what only TLS has ------------------------------------------------------------------------------------------ */

/* A client that has connected and not begun its handshake. */
static int raw_open(struct bench *bench, uint32_t *place)
{
    uint64_t opened = bench->rx->stats.conns_opened;
    int fd = client_connect(bench);
    PUMP_UNTIL(bench, bench->rx->stats.conns_opened > opened);
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        if (bench->seen[i].open && !bench->seen[i].closed) {
            *place = i;
        }
    }
    return fd;
}

static void expect_reset(struct bench *bench, uint32_t place, int error)
{
    PUMP_UNTIL(bench, bench->seen[place].reset);
    cr_expect(bench->seen[place].reset_error == error, "%d", bench->seen[place].reset_error);
    cr_expect(!bench->seen[place].eof);
    close_conn(bench, place, true);
}

/* Many clients end like this. It proves nothing about what came, which the event says; what is sent then still arrives. */
Test(rx_tls, fin_without_close_notify_is_an_end_that_proves_nothing)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 4, 0);
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 5000, 5000);
    shutdown(fd, SHUT_WR);
    PUMP_UNTIL(&bench, bench.seen[place].eof);
    cr_expect(bench.seen[place].eof_error == -ECONNABORTED, "%d", bench.seen[place].eof_error);
    cr_expect(bench.seen[place].bytes == 5000);
    cr_expect(!bench.seen[place].reset);
    struct iovec iov = {big, 30000};
    fill_big();
    cr_assert(rx_send(bench.rx, bench.seen[place].id, &iov, 1, 1) == 0);
    client_expect(&bench, fd, 30000);
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_tls, a_silent_and_a_half_spoken_handshake_end_at_the_deadline)
{
    static struct bench bench;
    uint32_t silent = 0;
    uint32_t half = 0;
    bench_handshake_ns = 50 * NS_PER_MS;
    bench_open(&bench, 4, 0);
    int fd = raw_open(&bench, &silent);
    int fd2 = raw_open(&bench, &half);
    cr_assert(peer_send(fd2, "\x16\x03\x01\x02", 4) == 4);
    cr_expect(rx_deadline(bench.rx) != TIME_NEVER, "the loop is woken for it");
    expect_reset(&bench, silent, -ETIMEDOUT);
    expect_reset(&bench, half, -ETIMEDOUT);
    peer_close(fd);
    peer_close(fd2);
    bench_close(&bench);
}

Test(rx_tls, an_open_connection_has_no_handshake_deadline)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_handshake_ns = 200 * NS_PER_MS;
    bench_open(&bench, 4, 0);
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 1,
                1); /* After it arrived the server, too, knows that the handshake is over. */
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 1);
    settle(&bench);
    cr_expect(rx_deadline(bench.rx) == TIME_NEVER);
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

/* Sends `bytes`, collects what comes back until the peer has closed, then closes too. */
static void talk_plain(struct bench *bench, const void *bytes, size_t len, char *answer, size_t size)
{
    uint32_t place = 0;
    size_t got = 0;
    int fd = raw_open(bench, &place);
    cr_assert(peer_send(fd, bytes, len) == (ssize_t)len);
    ssize_t n = -1;
    for (uint64_t end = clock_monotonic_ns() + PATIENCE_NS; n != 0;) {
        cr_assert(clock_monotonic_ns() < end);
        turn(bench, NS_PER_MS);
        n = peer_recv(fd, answer + got, size - 1 - got);
        got += n > 0 ? (size_t)n : 0;
    }
    answer[got] = '\0';
    peer_close(fd);
    expect_reset(bench, place, -EPROTO);
}

Test(rx_tls, plain_http_gets_a_plain_answer_and_other_bytes_an_alert)
{
    static struct bench bench;
    char answer[512];
    bench_open(&bench, 4, 0);
    talk_plain(&bench, "GET / HTTP/1.1\r\n\r\n", 18, answer, sizeof(answer));
    cr_expect(strncmp(answer, "HTTP/1.1 400 ", 13) == 0, "%s", answer);
    const char *body = strstr(answer, "\r\n\r\n");
    const char *length = strstr(answer, "Content-Length: ");
    cr_assert(body != NULL && length != NULL);
    cr_expect(strlen(body + 4) == strtoul(length + 16, NULL, 10), "%s", answer);
    uint8_t junk[3000];
    memset(junk, 0xff, sizeof(junk));
    talk_plain(&bench, junk, sizeof(junk), answer, sizeof(answer));
    cr_expect(strncmp(answer, "HTTP", 4) != 0);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    bench_close(&bench);
}

/* Closes at every point of the handshake, also while the helper thread has the connection. */
Test(rx_tls, a_close_at_any_moment_of_the_handshake_leaves_nothing_behind)
{
    static struct bench bench;
    bench_open(&bench, 4, 0);
    for (uint32_t turns = 0; turns < 40; turns++) {
        uint32_t place = 0;
        int fd = raw_open(&bench, &place);
        peer_tls_begin(fd);
        for (uint32_t i = 0; i < turns; i++) {
            (void)peer_tls_is_ready(fd);
            turn(&bench, 0);
        }
        close_conn(&bench, place, turns % 2 == 0);
        peer_close(fd);
    }
    cr_expect(bench.rx->stats.conns_open == 0);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    bench_close(&bench);
}

/* The instance itself ends while connections are in every stage. */
Test(rx_tls, closing_the_listener_during_handshakes_is_clean)
{
    for (uint32_t turns = 0; turns < 12; turns++) {
        static struct bench bench;
        int fds[CONNS_MAX];
        bench_open(&bench, 4, 0);
        for (uint32_t i = 0; i < CONNS_MAX; i++) {
            uint32_t place = 0;
            fds[i] = raw_open(&bench, &place);
            peer_tls_begin(fds[i]);
        }
        for (uint32_t i = 0; i < turns; i++) {
            for (uint32_t j = 0; j < CONNS_MAX; j++) {
                (void)peer_tls_is_ready(fds[j]);
            }
            turn(&bench, 0);
        }
        bench_close(&bench);
        for (uint32_t i = 0; i < CONNS_MAX; i++) {
            peer_close(fds[i]);
        }
    }
}
