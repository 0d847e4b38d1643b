/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_wait: TIME-WAIT, in a record much smaller than a connection, so that a server that closes first keeps its slots. Owns the
 * answers given in that state: an ACK to a repeated FIN, way for a newer SYN (RFC 1122 section 4.2.2.13, RFC 6191), nothing to
 * RSTs (RFC 1337).
 */
#include "tcp/tcp_int.h"

#define ANSWER_INTERVAL_NS (500 * NS_PER_MS) /* two ends that disagree must not ping-pong ACKs */

void tcp_wait_enter(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    tcp_node_remove(engine, &conn->node);
    struct tcp_wait *wait = tcp_wait_take(engine);
    CHECK(wait != NULL);
    wait->node.tuple = conn->node.tuple;
    wait->node.link = conn->node.link;
    wait->rcv_nxt = conn->rcv_nxt;
    wait->snd_nxt = conn->snd_nxt;
    wait->ts_on = conn->terms.ts_on;
    wait->ts_offset = conn->terms.ts_offset;
    wait->ts_recent = conn->terms.ts_recent;
    wait->window = (uint16_t)min_u32((conn->rcv_edge - conn->rcv_nxt) >> conn->terms.rcv_wscale, 65535);
    tcp_node_insert(engine, &wait->node);
    tcp_node_deadline(engine, &wait->node, now_ns + engine->config.time_wait_ns);
}

static void wait_answer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_wait *wait,
                        const struct tcp_segment *segment)
{
    if (wait->answered_ns != 0 && now_ns - wait->answered_ns < ANSWER_INTERVAL_NS) {
        TCP_COUNT(engine, challenge_acks_limited);
        return;
    }
    struct tcp_reply *reply = tcp_reply_take(engine, segment);
    if (reply == NULL) {
        return;
    }
    wait->answered_ns = now_ns;
    reply->seq = wait->snd_nxt;
    reply->ack = wait->rcv_nxt;
    reply->flags = TCP_ACK;
    reply->window = wait->window;
    reply->options.has_ts = wait->ts_on;
    reply->options.ts_value = tcp_ts_clock(now_ns, wait->ts_offset);
    reply->options.ts_echo = wait->ts_recent;
}

bool tcp_wait_input(struct tcp_engine *engine, uint64_t now_ns, struct tcp_wait *wait,
                    const struct tcp_segment *segment)
{
    const struct tcp_options *options = &segment->options;
    if (segment->flags & TCP_RST) {
        TCP_COUNT(engine, rst_ignored);
        return false;
    }
    if ((segment->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
        bool newer = seq_lt(wait->rcv_nxt, segment->seq);
        if (wait->ts_on && options->has_ts && options->ts_value != wait->ts_recent) {
            newer = seq_lt(wait->ts_recent, options->ts_value); /* the same tick leaves it to the numbers */
        }
        if (newer && tcp_listen_match(engine, &segment->tuple) < TCP_LISTENS_MAX) {
            TCP_COUNT(engine, time_wait_reused);
            engine->is_reopened = true;
            engine->reopened_nxt = wait->snd_nxt;
            tcp_wait_give(engine, wait);
            return true;
        }
    } else if (segment->seq == wait->rcv_nxt && segment->len == 0 && !(segment->flags & TCP_FIN)) {
        return false; /* a late ACK: nothing to tell */
    } else if ((segment->flags & TCP_FIN) && segment->seq + segment->len + 1 == wait->rcv_nxt) {
        tcp_node_deadline(engine, &wait->node, now_ns + engine->config.time_wait_ns);
    }
    TCP_COUNT(engine, drop_out_of_window);
    wait_answer(engine, now_ns, wait, segment);
    return false;
}
