/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_length: plans the length of ordinary queues' receive buffers. Pure: no system call, no allocation.
 *
 * Released kernels let memory providers (zcrx) choose that length and nobody else; the patches 2xx of kernel/ let users too, per queue. An
 * ordinary socket then receives in fewer and larger fragments. What the kernel does not offer is a refusal with that reason, never an
 * error: the socket path works without.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nic/nic_int.h"

static bool is_power_of_two(uint32_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Drivers that leave the length to memory providers (mlx5) report it for each queue and no maximum for users. */
static bool length_is_reported(const struct nic_state *state)
{
    for (uint32_t i = 0; i < state->rx_queues && i < NIC_QUEUES_MAX; i++) {
        if (is_power_of_two(state->queues[i].buf_len)) {
            return true;
        }
    }
    return false;
}

bool nic_has_buf_len(const struct nic_state *state)
{
    return length_is_reported(state) && is_power_of_two(state->rx_buf_len) &&
           is_power_of_two(state->rx_buf_len_max) && state->rx_buf_len_max >= state->rx_buf_len;
}

static bool length_offered(const struct nic_state *state, const struct nic_socket_wish *wish,
                           struct nic_plan *plan)
{
    char want[BYTES_SIZE_TEXT_MAX];
    char most[BYTES_SIZE_TEXT_MAX];
    if (!length_is_reported(state)) {
        nic_plan_refuse(
            plan,
            "%s: ordinary queues keep the driver's buffer length: this kernel or driver %s has no "
            "rx-buf-len per queue (patches 2xx in kernel/README.md add it)",
            state->name, state->driver);
        return false;
    }
    if (!nic_has_buf_len(state)) {
        nic_plan_refuse(plan,
                        "%s: ordinary queues keep the driver's buffer length: driver %s leaves it to "
                        "zero-copy receivers",
                        state->name, state->driver);
        return false;
    }
    if (wish->buffer_size > state->rx_buf_len_max) {
        nic_plan_refuse(plan, "%s: rx_buffer_size %s: ordinary queues take at most %s", state->name,
                        bytes_format_size(wish->buffer_size, want),
                        bytes_format_size(state->rx_buf_len_max, most));
        return false;
    }
    return true;
}

static bool rss_uses(const struct nic_state *state, uint32_t queue)
{
    bool is_used = state->context_count == 0; /* Not known: it may be any. */
    for (uint32_t i = 0; i < state->context_count; i++) {
        is_used |= state->contexts[i].uses[queue];
    }
    return is_used;
}

static bool has_provider(const struct nic_queue *queue)
{
    return queue->zcrx || queue->dmabuf;
}

static void plan_queue(const struct nic_state *state, const struct nic_socket_wish *wish, uint32_t index,
                       struct nic_plan *plan)
{
    const struct nic_queue *queue = &state->queues[index];
    char now[BYTES_SIZE_TEXT_MAX];
    char want[BYTES_SIZE_TEXT_MAX];
    if (queue->buf_len == wish->buffer_size) {
        return;
    }
    if (plan->step_count == NIC_STEPS_MAX) {
        nic_plan_refuse(plan, "%s: more than %u queues; name those that count by `queues`", state->name,
                        NIC_STEPS_MAX);
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_BUF_LEN);
    step->queue = index;
    step->value = wish->buffer_size;
    /* A queue that shows the device's length has none of its own, as far as one can see. */
    step->found = queue->buf_len == state->rx_buf_len ? 0 : queue->buf_len;
    snprintf(step->command, sizeof(step->command),
             "ynl --family netdev --do queue-set --json '{\"ifindex\": %u, \"type\": \"rx\", \"id\": %u, "
             "\"rx-buf-len\": %u}'",
             state->index, index, wish->buffer_size);
    snprintf(step->reason, sizeof(step->reason),
             "ordinary sockets receive on queue %u into buffers of %s, not %s; 0 takes it back", index,
             bytes_format_size(wish->buffer_size, want), bytes_format_size(queue->buf_len, now));
}

static void plan_named(const struct nic_state *state, const struct nic_socket_wish *wish,
                       struct nic_plan *plan)
{
    for (uint32_t i = 0; i < wish->queue_count && plan->refusal_count == 0; i++) {
        uint32_t index = wish->queues[i];
        if (index >= state->rx_queues || index >= NIC_QUEUES_MAX) {
            nic_plan_refuse(plan, "%s: queue %u does not exist (there are %u)", state->name, index,
                            state->rx_queues);
        } else if (has_provider(&state->queues[index]) || state->queues[index].leased) {
            nic_plan_refuse(plan, "%s: queue %u belongs to another receiver; name another queue", state->name,
                            index);
        } else {
            plan_queue(state, wish, index, plan);
        }
    }
}

/* Without names: wherever a connection may land. */
static void plan_spread(const struct nic_state *state, const struct nic_socket_wish *wish,
                        struct nic_plan *plan)
{
    for (uint32_t i = 0; i < state->rx_queues && i < NIC_QUEUES_MAX && plan->refusal_count == 0; i++) {
        if (rss_uses(state, i) && !has_provider(&state->queues[i]) && !state->queues[i].leased) {
            plan_queue(state, wish, i, plan);
        }
    }
}

void nic_plan_socket(const struct nic_state *state, const struct nic_socket_wish *wish, struct nic_plan *plan)
{
    memset(plan, 0, sizeof(*plan));
    CHECK(wish->buffer_size != 0);
    if (!length_offered(state, wish, plan)) {
        return;
    }
    if (wish->queue_count > 0) {
        plan_named(state, wish, plan);
    } else {
        plan_spread(state, wish, plan);
    }
    if (plan->refusal_count > 0) {
        plan->step_count = 0; /* All queues or none. */
    }
}
