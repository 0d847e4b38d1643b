/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_listen: passive opens, from a SYN to a connection. Owns listeners, half-open connections and SYN cookies.
 *
 *   (nothing) --SYN, room: listen_keep--> tcp_syn --good ACK: tcp_syn_input--> connection
 *       |                                   `--- RST, or SYN+ACK sent 6 times: gone
 *       `-----SYN, no room: cookie_send--> (nothing) --good cookie: tcp_cookie_input--> connection
 *
 * Cookies. When the pool of half-open connections is used up, all that has to be remembered travels in our SYN+ACK: the
 * sequence number carries the minute (2 bits), the peer's MSS (3 bits, from a table) and a keyed hash (27 bits); the low bits of
 * the timestamp carry window scale, SACK and ECN. Without timestamps those are not offered. An ACK is tried as a cookie
 * only within two periods after one was sent, so that nobody can guess at leisure.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "tcp/tcp_int.h"

#define SYNACKS_MAX 6U
#define COOKIE_PERIOD_NS (64 * NS_PER_S)
#define COOKIE_HASH_BITS 27U
#define COOKIE_NO_WSCALE 15U
#define TS_OPTION_BITS 6U /* 4 window scale, 1 SACK, 1 ECN */
#define ISN_STEP 65537U   /* a window more, in case the peer's last ACK is still on its way */
#define INITIAL_RTO_AFTER_LOSS_NS (3 * NS_PER_S) /* RFC 6298 section 5.7 */
#define MSS_MIN 64U                              /* smaller ones make us send mostly headers */
#define MSS_DEFAULT_V4 536U                      /* RFC 9293 section 3.7.1 */
#define MSS_DEFAULT_V6 1220U

static const uint16_t cookie_mss[8] = {MSS_MIN, 536, 1220, 1380, 1440, 1460, 4312, 8940};

static struct tcp_listener *listener_find(struct tcp_engine *engine, const uint8_t local[16], uint16_t port)
{
    for (uint32_t i = 0; i < TCP_LISTENS_MAX; i++) {
        struct tcp_listener *listener = &engine->listens[i];
        if (listener->port == port && memcmp(listener->local, local, 16) == 0) {
            return listener;
        }
    }
    return NULL;
}

int tcp_listen(struct tcp_engine *engine, const uint8_t local[16], uint16_t port)
{
    CHECK(port != 0);
    if (listener_find(engine, local, port) != NULL) {
        return -EEXIST;
    }
    for (uint32_t i = 0; i < TCP_LISTENS_MAX; i++) {
        struct tcp_listener *listener = &engine->listens[i];
        if (listener->port == 0 && listener->conns_used == 0) {
            memset(listener, 0, sizeof(*listener));
            memcpy(listener->local, local, 16);
            listener->port = port;
            return (int)i;
        }
    }
    return -ENOSPC;
}

void tcp_listen_limits(struct tcp_engine *engine, uint32_t listener, const struct tcp_limits *limits)
{
    CHECK(listener < TCP_LISTENS_MAX);
    engine->listens[listener].limits = *limits;
}

uint64_t tcp_listen_refused(const struct tcp_engine *engine, uint32_t listener)
{
    CHECK(listener < TCP_LISTENS_MAX);
    return engine->listens[listener].refused;
}

uint32_t tcp_listen_conns(const struct tcp_engine *engine, uint32_t listener)
{
    CHECK(listener < TCP_LISTENS_MAX);
    return engine->listens[listener].conns_used;
}

int tcp_listen_stop(struct tcp_engine *engine, const uint8_t local[16], uint16_t port)
{
    struct tcp_listener *listener = listener_find(engine, local, port);
    if (listener == NULL) {
        return -ENOENT;
    }
    listener->port = 0; /* The rest stays as long as it has connections. */
    LIST_FOR_EACH_SAFE(link, &engine->syn_age)
    {
        struct tcp_syn *syn = CONTAINER_OF(link, struct tcp_syn, age_link);
        if (tcp_listen_match(engine, &syn->node.tuple) == TCP_LISTENS_MAX) {
            tcp_syn_give(engine, syn);
        }
    }
    return 0;
}

uint32_t tcp_listen_match(const struct tcp_engine *engine, const struct tcp_tuple *tuple)
{
    static const uint8_t any[16];
    uint32_t found = TCP_LISTENS_MAX;
    for (uint32_t i = 0; i < TCP_LISTENS_MAX; i++) {
        const struct tcp_listener *listener = &engine->listens[i];
        if (listener->port != tuple->local_port || listener->port == 0) {
            continue;
        }
        if (memcmp(listener->local, tuple->local, 16) == 0) {
            return i;
        }
        found = memcmp(listener->local, any, 16) == 0 ? i : found;
    }
    return found;
}

/* No connection is free, or the listener has its share. Counted. */
static bool listener_is_full(struct tcp_engine *engine, uint32_t index)
{
    struct tcp_listener *listener = &engine->listens[index];
    bool is_full = listener->limits.conns_max > 0 && listener->conns_used >= listener->limits.conns_max;
    if (!is_full && engine->conns_free != NULL) {
        return false;
    }
    listener->refused++;
    return true;
}

uint32_t tcp_isn(const struct tcp_engine *engine, const struct tcp_tuple *tuple, uint64_t now_ns)
{
    uint64_t hash = tcp_siphash(engine->config.secret + 16, (const uint8_t *)tuple, sizeof(*tuple));
    return (uint32_t)hash + (uint32_t)(now_ns >> 12); /* a step every 4 us (RFC 6528 section 3) */
}

uint32_t tcp_ts_offset(const struct tcp_engine *engine, const struct tcp_tuple *tuple)
{
    return (uint32_t)(tcp_siphash(engine->config.secret + 16, (const uint8_t *)tuple, sizeof(*tuple)) >> 32);
}

uint16_t tcp_mss_own(const struct tcp_engine *engine, const struct tcp_tuple *tuple)
{
    return (uint16_t)(engine->mtu - (tuple->version == 4 ? 40 : 60));
}

/* What a SYN (or SYN+ACK) offers, as far as our configuration goes along. */
static void terms_from_syn(const struct tcp_engine *engine, const struct tcp_segment *segment,
                           struct tcp_terms *terms)
{
    const struct tcp_options *options = &segment->options;
    uint32_t mss_default = segment->tuple.version == 4 ? MSS_DEFAULT_V4 : MSS_DEFAULT_V6;
    memset(terms, 0, sizeof(*terms));
    terms->irs = segment->seq;
    terms->peer_mss = (uint16_t)max_u32(options->mss == 0 ? mss_default : options->mss, MSS_MIN);
    terms->wscale_on = options->has_wscale;
    terms->snd_wscale =
        options->has_wscale ? (uint8_t)min_u32(options->wscale, 14) : 0; /* RFC 7323 section 2.3 */
    terms->rcv_wscale = options->has_wscale ? engine->rcv_wscale : 0;
    terms->sack_on = options->sack_permitted && !engine->config.no_sack;
    terms->ts_on = options->has_ts && !engine->config.no_timestamps;
    terms->ts_recent = options->ts_value;
    terms->ecn_on = (segment->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR) && !engine->config.no_ecn;
    terms->ts_offset = tcp_ts_offset(engine, &segment->tuple);
}

/* The window of a SYN+ACK, never scaled. A function of the configuration only, because a cookie does not remember it. */
static uint16_t syn_window(const struct tcp_engine *engine)
{
    uint32_t each = min_u32(engine->config.mtu - 72, engine->config.frame_bytes); /* IPv6, timestamps */
    uint64_t bytes = (uint64_t)tcp_frames_promised(engine) * each;
    return (uint16_t)(bytes < 65535 ? bytes : 65535);
}

static void synack_options(const struct tcp_engine *engine, const struct tcp_tuple *tuple,
                           const struct tcp_terms *terms, uint64_t now_ns, struct tcp_options *options)
{
    memset(options, 0, sizeof(*options));
    options->mss = tcp_mss_own(engine, tuple);
    options->has_wscale = terms->wscale_on;
    options->wscale = terms->rcv_wscale;
    options->sack_permitted = terms->sack_on;
    options->has_ts = terms->ts_on;
    options->ts_value = tcp_ts_clock(now_ns, terms->ts_offset);
    options->ts_echo = terms->ts_recent;
}

/* ---- no connection ---- */

static bool reset_allowed(struct tcp_engine *engine, uint64_t now_ns)
{
    if (now_ns - engine->reset_ns >= NS_PER_S) {
        engine->reset_ns = now_ns;
        engine->reset_count = 0;
    }
    if (engine->reset_count >= engine->config.resets_per_s) {
        TCP_COUNT(engine, resets_limited);
        return false;
    }
    engine->reset_count++;
    return true;
}

void tcp_reset_reply(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment)
{
    if ((segment->flags & TCP_RST) || !reset_allowed(engine, now_ns)) {
        return;
    }
    struct tcp_reply *reply = tcp_reply_take(engine, segment);
    if (reply == NULL) {
        return;
    }
    TCP_COUNT(engine, resets_sent);
    reply->flags = TCP_RST;
    if (segment->flags & TCP_ACK) { /* RFC 9293 section 3.10.7.1 */
        reply->seq = segment->ack;
    } else {
        reply->flags |= TCP_ACK;
        reply->ack =
            segment->seq + segment->len + !!(segment->flags & TCP_SYN) + !!(segment->flags & TCP_FIN);
    }
}

static uint32_t cookie_make(const struct tcp_engine *engine, const struct tcp_segment *segment, uint32_t irs,
                            uint64_t period, uint32_t mss_index)
{
    uint8_t input[sizeof(struct tcp_tuple) + 16];
    memcpy(input, &segment->tuple, sizeof(struct tcp_tuple));
    bytes_put_be32(input + sizeof(struct tcp_tuple), irs);
    bytes_put_be64(input + sizeof(struct tcp_tuple) + 4, period);
    bytes_put_be32(input + sizeof(struct tcp_tuple) + 12, mss_index);
    uint64_t hash = tcp_siphash(engine->config.secret + 16, input, sizeof(input));
    return (uint32_t)(period & 3) << 30 | mss_index << COOKIE_HASH_BITS |
           (uint32_t)(hash & ((1U << COOKIE_HASH_BITS) - 1));
}

/* The newest timestamp, not after the clock, whose low bits say what was agreed. */
static uint32_t cookie_timestamp(const struct tcp_terms *terms, uint64_t now_ns)
{
    uint32_t clock = tcp_ts_clock(now_ns, terms->ts_offset);
    uint32_t bits = (terms->wscale_on ? terms->snd_wscale : COOKIE_NO_WSCALE) |
                    (uint32_t)terms->sack_on << 4 | (uint32_t)terms->ecn_on << 5;
    uint32_t value = (clock & ~((1U << TS_OPTION_BITS) - 1)) | bits;
    return seq_lt(clock, value) ? value - (1U << TS_OPTION_BITS) : value;
}

static void cookie_send(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment,
                        struct tcp_terms *terms)
{
    struct tcp_reply *reply = tcp_reply_take(engine, segment);
    uint32_t mss_index = 0;
    if (reply == NULL) {
        return;
    }
    while (mss_index + 1 < ARRAY_COUNT(cookie_mss) && cookie_mss[mss_index + 1] <= terms->peer_mss) {
        mss_index++;
    }
    if (!terms->ts_on) {
        terms->wscale_on = terms->sack_on = terms->ecn_on = false;
    }
    TCP_COUNT(engine, cookies_sent);
    engine->cookie_ns = now_ns;
    reply->seq = cookie_make(engine, segment, terms->irs, now_ns / COOKIE_PERIOD_NS, mss_index);
    reply->ack = terms->irs + 1;
    reply->flags = TCP_SYN | TCP_ACK | (terms->ecn_on ? TCP_ECE : 0);
    reply->window = syn_window(engine);
    synack_options(engine, &segment->tuple, terms, now_ns, &reply->options);
    reply->options.ts_value = cookie_timestamp(terms, now_ns);
}

static void listen_keep(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment,
                        const struct tcp_terms *terms)
{
    struct tcp_syn *syn = tcp_syn_take(engine);
    CHECK(syn != NULL);
    syn->node.tuple = segment->tuple;
    syn->node.link = segment->link;
    syn->terms = *terms;
    syn->terms.iss = tcp_isn(engine, &segment->tuple, now_ns);
    if (engine->is_reopened && seq_le(syn->terms.iss, engine->reopened_nxt)) {
        /* RFC 1122 section 4.2.2.13: above all that was sent before; a fast sender outruns the clock of the numbers. */
        syn->terms.iss = engine->reopened_nxt + ISN_STEP;
    }
    syn->answer = true;
    tcp_node_insert(engine, &syn->node);
    tcp_node_deadline(engine, &syn->node, now_ns + NS_PER_S);
    tcp_node_out(engine, &syn->node);
}

void tcp_listen_input(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment)
{
    struct tcp_terms terms;
    uint32_t listener = tcp_listen_match(engine, &segment->tuple);
    bool known_port = listener < TCP_LISTENS_MAX;
    if (known_port && engine->strays_deferred && (segment->flags & (TCP_RST | TCP_ACK)) != 0) {
        engine->is_stray = true;
        return;
    }
    if (segment->flags & TCP_RST) {
        TCP_COUNT(engine, rst_ignored);
        return;
    }
    if (!known_port || (segment->flags & TCP_ACK)) {
        engine->stats.counters[known_port ? TCP_COUNTER_drop_no_conn : TCP_COUNTER_drop_no_listener]++;
        tcp_reset_reply(engine, now_ns, segment);
        return;
    }
    if ((segment->flags & (TCP_SYN | TCP_FIN)) != TCP_SYN || segment->tuple.peer_port == 0) {
        TCP_COUNT(engine, drop_flags);
        return;
    }
    TCP_COUNT(engine, syns_in);
    if (listener_is_full(engine, listener)) { /* silence makes the peer try again */
        TCP_COUNT(engine, syn_conns_full);
        return;
    }
    terms_from_syn(engine, segment, &terms);
    /* Data in a SYN is not kept; our ACK leaves it out and the peer sends it again. */
    if (engine->config.cookies_always || engine->syns_free == NULL) {
        cookie_send(engine, now_ns, segment, &terms);
    } else {
        listen_keep(engine, now_ns, segment, &terms);
    }
}

/* ---- completing ---- */

static struct tcp_conn *complete(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_terms *terms,
                                 const struct tcp_segment *segment)
{
    uint32_t listener = tcp_listen_match(engine, &segment->tuple);
    CHECK(listener < TCP_LISTENS_MAX); /* Half-open connections go with their listener. */
    if (listener_is_full(engine,
                         listener)) { /* the peer's next segment, or our SYN+ACK's timer, tries again */
        TCP_COUNT(engine, conns_full);
        return NULL;
    }
    struct tcp_conn *conn = tcp_conn_take(engine, listener);
    CHECK(conn != NULL);
    conn->node.tuple = segment->tuple;
    conn->node.link = segment->link;
    conn->terms = *terms;
    conn->rcv_nxt = terms->irs + 1;
    conn->rcv_edge = conn->rcv_nxt + syn_window(engine);
    conn->snd_una = conn->snd_nxt = conn->snd_end = terms->iss + 1;
    conn->snd_wl1 = segment->seq;
    conn->snd_wl2 = segment->ack;
    conn->snd_wnd = segment->window << terms->snd_wscale;
    tcp_conn_open(engine, now_ns, conn);
    TCP_COUNT(engine, conns_opened);
    return conn;
}

bool tcp_cookie_input(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment,
                      struct tcp_conn **conn)
{
    struct tcp_terms terms;
    uint32_t cookie = segment->ack - 1;
    uint32_t mss_index = cookie >> COOKIE_HASH_BITS & 7;
    uint64_t period = now_ns / COOKIE_PERIOD_NS;
    if (engine->cookie_ns == 0 || now_ns - engine->cookie_ns > 2 * COOKIE_PERIOD_NS ||
        tcp_listen_match(engine, &segment->tuple) == TCP_LISTENS_MAX) {
        return false;
    }
    period -= (period - (cookie >> 30)) & 3;
    bool fresh = now_ns / COOKIE_PERIOD_NS - period <= 1;
    if (!fresh || cookie_make(engine, segment, segment->seq - 1, period, mss_index) != cookie) {
        TCP_COUNT(engine, cookies_bad);
        return false;
    }
    TCP_COUNT(engine, cookies_good);
    memset(&terms, 0, sizeof(terms));
    terms.irs = segment->seq - 1;
    terms.iss = cookie;
    terms.peer_mss = cookie_mss[mss_index];
    terms.ts_offset = tcp_ts_offset(engine, &segment->tuple);
    if (segment->options.has_ts && !engine->config.no_timestamps) {
        uint32_t bits = segment->options.ts_echo;
        terms.ts_on = true;
        terms.ts_recent = segment->options.ts_value;
        terms.wscale_on = (bits & 15) != COOKIE_NO_WSCALE;
        terms.snd_wscale = terms.wscale_on ? (uint8_t)min_u32(bits & 15, 14) : 0;
        terms.rcv_wscale = terms.wscale_on ? engine->rcv_wscale : 0;
        terms.sack_on = (bits >> 4 & 1) && !engine->config.no_sack;
        terms.ecn_on = (bits >> 5 & 1) && !engine->config.no_ecn;
    }
    *conn = complete(engine, now_ns, &terms, segment);
    return true;
}

static void syn_repeated(struct tcp_engine *engine, struct tcp_syn *syn, const struct tcp_segment *segment)
{
    TCP_COUNT(engine, syns_repeated);
    /* RFC 3168 section 6.1.1.1: a peer whose SYN got lost asks no more for ECN, and then neither side marks. */
    syn->terms.ecn_on = syn->terms.ecn_on && (segment->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
    syn->answer = true;
    tcp_node_out(engine, &syn->node);
}

static void syn_challenge(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn)
{
    syn->ack = syn->ack || tcp_challenge_allowed(engine, now_ns, &syn->challenges);
    tcp_node_out(engine, &syn->node);
}

/* The ACK that a half-open connection waited for. */
static struct tcp_conn *syn_complete(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn,
                                     const struct tcp_segment *segment)
{
    struct tcp_terms terms = syn->terms;
    bool was_lost = syn->retries > 0;
    tcp_syn_give(engine, syn);
    struct tcp_conn *conn = complete(engine, now_ns, &terms, segment);
    if (conn != NULL && was_lost) {
        /* RFC 5681 section 3.1: the path is known to be bad, or slower than thought. */
        conn->cwnd = conn->mss;
        conn->rto_ns = INITIAL_RTO_AFTER_LOSS_NS;
    }
    return conn;
}

/* RFC 9293 section 3.10.7.4 for SYN-RECEIVED: sequence number, RST, SYN, ACK, in this order. */
struct tcp_conn *tcp_syn_input(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn,
                               const struct tcp_segment *segment)
{
    uint32_t rcv_nxt = syn->terms.irs + 1;
    uint32_t edge = rcv_nxt + syn_window(engine);
    bool is_syn = (segment->flags & TCP_SYN) != 0;
    if (is_syn && !(segment->flags & (TCP_ACK | TCP_RST)) && segment->seq == syn->terms.irs) {
        syn_repeated(engine, syn, segment);
        return NULL;
    }
    bool in_window = seq_le(rcv_nxt, segment->seq) && seq_lt(segment->seq, edge);
    if (segment->flags & TCP_RST) {
        if (segment->seq == rcv_nxt) {
            TCP_COUNT(engine, conns_reset_in);
            tcp_syn_give(engine, syn);
            return NULL;
        }
        engine->stats.counters[in_window ? TCP_COUNTER_rst_in_window : TCP_COUNTER_rst_ignored]++;
        if (in_window) {
            syn_challenge(engine, now_ns, syn);
        }
        return NULL;
    }
    bool is_old = segment->options.has_ts && syn->terms.ts_on &&
                  seq_lt(segment->options.ts_value, syn->terms.ts_recent);
    if (!in_window || is_syn || is_old) {
        /* Also a SYN with another number, from a peer that lost its memory: our ACK makes it reset this handshake. */
        TCP_COUNT(engine, drop_out_of_window);
        syn_challenge(engine, now_ns, syn);
        return NULL;
    }
    if (!(segment->flags & TCP_ACK)) {
        TCP_COUNT(engine, drop_no_ack);
        return NULL;
    }
    if (segment->ack != syn->terms.iss + 1) {
        TCP_COUNT(engine, drop_ack_invalid);
        tcp_reset_reply(engine, now_ns, segment);
        return NULL;
    }
    uint32_t listener = tcp_listen_match(engine, &segment->tuple);
    CHECK(listener < TCP_LISTENS_MAX);
    if (listener_is_full(engine, listener)) { /* before the handshake is forgotten */
        TCP_COUNT(engine, conns_full);
        return NULL;
    }
    return syn_complete(engine, now_ns, syn, segment);
}

void tcp_syn_timer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn)
{
    if (++syn->retries >= SYNACKS_MAX) {
        TCP_COUNT(engine, syn_timeouts);
        tcp_syn_give(engine, syn);
        return;
    }
    TCP_COUNT(engine, synacks_retransmitted);
    syn->answer = true;
    tcp_node_out(engine, &syn->node);
    tcp_node_deadline(engine, &syn->node, now_ns + (NS_PER_S << syn->retries));
}

uint32_t tcp_syn_output(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn, uint8_t *buf)
{
    struct tcp_out out = {.tuple = &syn->node.tuple, .link = &syn->node.link, .ack = syn->terms.irs + 1};
    if (!syn->answer && !syn->ack) {
        return 0;
    }
    out.ip_id = engine->ip_id++;
    if (syn->answer) {
        out.seq = syn->terms.iss;
        /* RFC 3168 section 6.1.1.1: a repeated SYN+ACK asks no more for ECN, in case that was what got it lost. */
        syn->terms.ecn_on = syn->terms.ecn_on && syn->retries == 0;
        out.flags = TCP_SYN | TCP_ACK | (syn->terms.ecn_on ? TCP_ECE : 0);
        out.window = syn_window(engine);
        synack_options(engine, &syn->node.tuple, &syn->terms, now_ns, &out.options);
    } else {
        out.seq = syn->terms.iss + 1;
        out.flags = TCP_ACK;
        out.window = (uint16_t)(syn_window(engine) >> syn->terms.rcv_wscale);
        out.options.has_ts = syn->terms.ts_on;
        out.options.ts_value = tcp_ts_clock(now_ns, syn->terms.ts_offset);
        out.options.ts_echo = syn->terms.ts_recent;
    }
    syn->answer = syn->ack = false;
    return tcp_wire_emit(&out, buf, 0, 0);
}

/* ---- the other side ---- */

int tcp_connect(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_tuple *tuple,
                const struct tcp_link *link, struct tcp_id *out)
{
    if (tcp_node_find(engine, tuple) != NULL) {
        return -EADDRINUSE;
    }
    struct tcp_conn *conn = tcp_conn_take(engine, TCP_LISTENS_MAX);
    if (conn == NULL) {
        return -ENFILE;
    }
    conn->node.tuple = *tuple;
    conn->node.link = *link;
    conn->terms.iss = tcp_isn(engine, tuple, now_ns);
    conn->terms.ts_offset = tcp_ts_offset(engine, tuple);
    conn->terms.peer_mss = tuple->version == 4 ? MSS_DEFAULT_V4 : MSS_DEFAULT_V6;
    conn->snd_una = conn->snd_nxt = conn->terms.iss;
    conn->snd_end = conn->terms.iss + 1;
    tcp_conn_open(engine, now_ns, conn);
    conn->open_due = false;
    conn->state = TCP_STATE_SYN_SENT;
    tcp_conn_settle(engine, conn);
    *out = (struct tcp_id){conn->index, conn->generation};
    return 0;
}

bool tcp_connect_answered(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                          const struct tcp_segment *segment)
{
    struct tcp_terms terms;
    bool acks_us = (segment->flags & TCP_ACK) && segment->ack == conn->terms.iss + 1;
    if ((segment->flags & TCP_ACK) && !acks_us) { /* RFC 9293 section 3.10.7.3 */
        TCP_COUNT(engine, drop_ack_invalid);
        tcp_reset_reply(engine, now_ns, segment);
        return false;
    }
    if (segment->flags & TCP_RST) {
        if (acks_us) {
            TCP_COUNT(engine, conns_reset_in);
            tcp_conn_dead(engine, conn, -ECONNREFUSED);
        }
        return false;
    }
    if (!(segment->flags & TCP_SYN) || !acks_us) { /* simultaneous open is not for us */
        TCP_COUNT(engine, drop_flags);
        return false;
    }
    terms_from_syn(engine, segment, &terms);
    terms.iss = conn->terms.iss;
    terms.ecn_on = (segment->flags & (TCP_ECE | TCP_CWR)) == TCP_ECE && !engine->config.no_ecn;
    conn->terms = terms;
    conn->node.link = segment->link;
    conn->rcv_nxt = terms.irs + 1;
    conn->rcv_edge = conn->rcv_nxt + syn_window(engine);
    conn->snd_una = conn->snd_nxt = conn->terms.iss + 1;
    conn->snd_wl1 = segment->seq;
    conn->snd_wl2 = segment->ack;
    conn->snd_wnd = segment->window;
    tcp_conn_open(engine, now_ns, conn);
    TCP_COUNT(engine, conns_opened);
    conn->acks_due = 1;
    return true;
}

uint32_t tcp_connect_output(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    struct tcp_out out = {.tuple = &conn->node.tuple, .link = &conn->node.link, .seq = conn->terms.iss};
    if (conn->snd_nxt != conn->terms.iss) {
        return 0;
    }
    out.ip_id = engine->ip_id++;
    out.flags = TCP_SYN | (engine->config.no_ecn || conn->rto_shift > 0 ? 0 : TCP_ECE | TCP_CWR);
    out.window = syn_window(engine);
    out.options.mss = tcp_mss_own(engine, &conn->node.tuple);
    out.options.has_wscale = true;
    out.options.wscale = engine->rcv_wscale;
    out.options.sack_permitted = !engine->config.no_sack;
    out.options.has_ts = !engine->config.no_timestamps;
    out.options.ts_value = tcp_ts_clock(now_ns, conn->terms.ts_offset);
    conn->snd_nxt++;
    conn->stalled_ns = conn->stalled_ns == 0 ? now_ns : conn->stalled_ns;
    tcp_rtx_arm(conn, now_ns);
    return tcp_wire_emit(&out, buf, 0, 0);
}
