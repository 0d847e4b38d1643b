/* SPDX-License-Identifier: Apache-2.0 */
/* cli_nic: `penstock nic plan|apply|undo`: the network cards of the configured listeners, looked at, prepared, put back. */
#include <errno.h>
#include <linux/netdev.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "nic/nic.h"
#include "server/cli.h"
#include "server/lock.h"
#include "server/receive.h"

static const char *switch_text(enum nic_switch value)
{
    return value == NIC_ON ? "on" : value == NIC_OFF ? "off" : "unknown";
}

static void state_print(const char *listener, const char *path, const struct nic_state *state)
{
    printf("listener %s: %s, driver %s, %u receive queues, %s%s, for %s\n", listener, state->name,
           state->driver, state->rx_queues, state->up ? "up" : "down", state->carrier ? "" : ", no carrier",
           path);
    if (strcmp(path, conf_receive_text(CONF_RECEIVE_AF_XDP)) == 0) {
        printf("  mtu %u, xdp zero-copy %s, several buffers a frame %s, rx-lro %s, rx-gro-hw %s, rx-gro %s, "
               "VLANs %u, rx-vlan-hw-parse %s, %u virtual functions, dcb %s\n",
               state->mtu, (state->xdp_features & NETDEV_XDP_ACT_XSK_ZEROCOPY) != 0 ? "yes" : "no",
               (state->xdp_features & NETDEV_XDP_ACT_RX_SG) != 0 ? "yes" : "no",
               switch_text(state->lro.state), switch_text(state->gro_hw.state), switch_text(state->gro.state),
               state->vlans, switch_text(state->vlan_strip.state), state->virtual_functions,
               state->dcb ? "on" : "off");
        return;
    }
    printf("  tcp-data-split %s, hds-thresh %u, rx-gro-hw %s, ntuple %s, %u steering rules, RSS tables %u\n",
           switch_text(state->data_split), state->hds_thresh, switch_text(state->gro_hw.state),
           switch_text(state->ntuple.state), state->rule_count, state->context_count);
}

/* Only where users can set it; queues that differ from the device are named. */
static void length_print(const struct nic_state *state)
{
    char text[BYTES_SIZE_TEXT_MAX];
    char most[BYTES_SIZE_TEXT_MAX];
    if (!nic_has_buf_len(state)) {
        return;
    }
    printf("  rx-buf-len %s, at most %s", bytes_format_size(state->rx_buf_len, text),
           bytes_format_size(state->rx_buf_len_max, most));
    for (uint32_t i = 0; i < state->rx_queues && i < NIC_QUEUES_MAX; i++) {
        if (state->queues[i].buf_len != state->rx_buf_len) {
            printf(", queue %u %s", i, bytes_format_size(state->queues[i].buf_len, text));
        }
    }
    printf("\n");
}

static void plan_print(const struct nic_plan *plan)
{
    for (uint32_t i = 0; i < plan->refusal_count; i++) {
        printf("  cannot: %s\n", plan->refusals[i]);
    }
    /* What is not enough is not to be done. */
    for (uint32_t i = 0; i < plan->step_count && plan->refusal_count == 0; i++) {
        printf("  %s\n      %s%s\n", plan->steps[i].command, plan->steps[i].reason,
               plan->steps[i].is_reported ? " (reported as set)" : "");
    }
    if (plan->refusal_count == 0 && plan->step_count == 0) {
        printf("  nothing to change\n");
    }
}

struct nic_job {
    const struct conf *conf;
    bool is_apply;
    uint32_t seen; /* listeners that have a NIC */
};

static int nic_listener(struct nic_job *job, uint32_t index)
{
    const struct conf_listener *listener = &job->conf->listeners[index];
    struct nic_state *state = calloc(1, sizeof(*state));
    struct nic_plan *plan = calloc(1, sizeof(*plan));
    struct err err = {""};
    if (state == NULL || plan == NULL) {
        free(state);
        free(plan);
        return cli_fail(CLI_FAILED, "out of memory");
    }
    int code = CLI_OK;
    const char *path = "";
    int rc = receive_nic_plan(job->conf, index, state, plan, &path, &err);
    if (rc < 0) {
        printf("listener %s: %s\n", listener->name, err.text);
    } else {
        job->seen++;
        state_print(listener->name, path, state);
        length_print(state);
        plan_print(plan);
        /* What a socket listener cannot have is no failure: it works without. */
        bool is_socket = strcmp(path, conf_receive_text(CONF_RECEIVE_SOCKET)) == 0;
        bool is_tried = !is_socket || plan->refusal_count == 0;
        if (job->is_apply && is_tried && nic_apply(state, plan, job->conf->node.data_dir, &err) < 0) {
            code = cli_fail(CLI_FAILED, "listener %s: %s", listener->name, err.text);
        }
    }
    nic_state_free(state);
    free(state);
    free(plan);
    return code;
}

static int nic_listeners(const struct conf *conf, bool is_apply)
{
    struct nic_job job = {.conf = conf, .is_apply = is_apply};
    int code = CLI_OK;
    for (uint32_t i = 0; i < conf->listener_count && code == CLI_OK; i++) {
        const struct conf_listener *listener = &conf->listeners[i];
        if (listener->receive == CONF_RECEIVE_SOCKET && listener->rx_buffer_size == 0) {
            printf("listener %s: receive: socket without rx_buffer_size needs nothing of a NIC\n",
                   listener->name);
            continue;
        }
        code = nic_listener(&job, i);
    }
    if (code == CLI_OK && job.seen == 0) {
        printf("no listener here uses a NIC\n");
    }
    return code;
}

static int nic_undo_command(const struct conf *conf)
{
    struct err err = {""};
    return nic_undo_all(conf->node.data_dir, NIC_UNDO_ALL, &err) < 0 ? cli_fail(CLI_FAILED, "%s", err.text)
                                                                     : CLI_OK;
}

static int nic_change(const struct conf *conf, bool is_apply)
{
    struct lock lock = {.fd = -1};
    struct err err = {""};
    pid_t holder = 0;
    int rc = lock_take(&lock, conf->node.data_dir, &holder, &err);
    if (rc != 0) {
        return cli_fail(rc == -EBUSY ? CLI_IN_USE : CLI_FAILED, "%s", err.text);
    }
    int code = nic_undo_command(conf); /* An older journal comes first: its found values are the true ones. */
    if (code == CLI_OK && is_apply) {
        code = nic_listeners(conf, true);
        rc = nic_keep_all(conf->node.data_dir, &err); /* Or the node's start would undo it. */
        code = rc < 0 && code == CLI_OK ? cli_fail(CLI_FAILED, "%s", err.text) : code;
    }
    lock_release(&lock);
    return code;
}

int cli_nic(const struct cli *cli)
{
    const char *action = cli->operands[0];
    bool is_plan = strcmp(action, "plan") == 0;
    bool is_apply = strcmp(action, "apply") == 0;
    if (!is_plan && !is_apply && strcmp(action, "undo") != 0) {
        return cli_fail(CLI_USAGE, "nic: '%s' is not an action; plan, apply and undo are", action);
    }
    struct conf *conf = cli_load(cli);
    if (conf == NULL) {
        return CLI_CONFIG;
    }
    int code = is_plan ? nic_listeners(conf, false) : nic_change(conf, is_apply);
    conf_free(conf);
    return code;
}
