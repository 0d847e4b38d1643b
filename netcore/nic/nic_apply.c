/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_apply: carries plans out and undoes them.
 *
 * Journal: one text line per change, written and synced before the change is made, so that whatever a crash leaves can be
 * put back (nic_journal.h). Lines are played backwards. A line names the value found and the value set; undo leaves alone what has
 * another value by then, because somebody else changed it. What cannot be undone now stays in the journal: what the kernel refuses, and
 * while another process receives into a queue of the card all that is the card's as a whole. It needs that as much as we did,
 * and a table that leads foreign flows to its queue would make their receives fail with EFAULT.
 *
 *   feature NAME FOUND SET      rings SPLIT_FOUND HAS_HDS HDS_FOUND      channels FOUND SET
 *   table SIZE SET Q,Q,...      (found; set to equal over the first SET queues. rss SIZE Q,Q,... of earlier versions lacks SET)
 *   ours FIRST COUNT            (queues that are to be ours: nothing to undo, but who they belong to while they are closing)
 *   context FIRST COUNT ID,ID,...  (the ids found: the new one's is not known before it is made)
 *   rule TYPE ADDRESS PORT QUEUE SOURCE_PORT SOURCE_MASK       (found again by its match)
 *   length QUEUE FOUND SET      defer FOUND FLUSH_FOUND SET FLUSH_SET
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool_netlink.h>
#include <linux/netdev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "nic/nic_genl.h"
#include "nic/nic_int.h"
#include "nic/nic_journal.h"

#define JOURNAL_LINE_MAX 65536
#define RSS_SIZE_MAX 4096U
_Static_assert(RSS_SIZE_MAX * 11 + 64 < JOURNAL_LINE_MAX, "a line holds the largest table");

/* ---- setting --------------------------------------------------------------------------------------------------- */

struct nic_setter {
    struct nic_genl genl;
    const char *interface;
    uint32_t index;
    uint32_t context; /* the RSS context that this plan made */
    char words[256];  /* the kernel's words for the last refusal */
};

static int setter_open(struct nic_setter *setter, const char *interface, struct err *err)
{
    memset(setter, 0, sizeof(*setter));
    setter->interface = interface;
    setter->index = if_nametoindex(interface);
    if (setter->index == 0) {
        return err_set(err, -ENODEV, "interface %s does not exist here", interface);
    }
    return nic_genl_open(&setter->genl, ETHTOOL_GENL_NAME, err);
}

static int setter_call(struct nic_setter *setter, struct nl_msg *message)
{
    int rc = nic_genl_call(&setter->genl, message, NULL, NULL);
    snprintf(setter->words, sizeof(setter->words), "%s", setter->genl.words);
    return rc;
}

static int set_feature(struct nic_setter *setter, const char *name, bool on)
{
    struct nl_msg *message = nic_genl_message(&setter->genl, ETHTOOL_MSG_FEATURES_SET, NLM_F_ACK);
    if (message == NULL || nic_header_put(message, ETHTOOL_A_FEATURES_HEADER, setter->index) < 0) {
        nlmsg_free(message);
        return -ENOMEM;
    }
    struct nlattr *wanted = nla_nest_start(message, ETHTOOL_A_FEATURES_WANTED | NLA_F_NESTED);
    struct nlattr *bits = nla_nest_start(message, ETHTOOL_A_BITSET_BITS | NLA_F_NESTED);
    struct nlattr *bit = nla_nest_start(message, ETHTOOL_A_BITSET_BITS_BIT | NLA_F_NESTED);
    if (wanted == NULL || bits == NULL || bit == NULL ||
        nla_put_string(message, ETHTOOL_A_BITSET_BIT_NAME, name) < 0 ||
        (on && nla_put_flag(message, ETHTOOL_A_BITSET_BIT_VALUE) < 0)) {
        nlmsg_free(message);
        return -ENOMEM;
    }
    nla_nest_end(message, bit);
    nla_nest_end(message, bits);
    nla_nest_end(message, wanted);
    return setter_call(setter, message);
}

static int set_rings(struct nic_setter *setter, enum nic_switch split, bool has_thresh, uint32_t thresh)
{
    struct nl_msg *message = nic_genl_message(&setter->genl, ETHTOOL_MSG_RINGS_SET, NLM_F_ACK);
    if (message == NULL || nic_header_put(message, ETHTOOL_A_RINGS_HEADER, setter->index) < 0 ||
        nla_put_u8(message, ETHTOOL_A_RINGS_TCP_DATA_SPLIT, (uint8_t)split) < 0 ||
        (has_thresh && nla_put_u32(message, ETHTOOL_A_RINGS_HDS_THRESH, thresh) < 0)) {
        nlmsg_free(message);
        return -ENOMEM;
    }
    return setter_call(setter, message);
}

static int set_channels(struct nic_setter *setter, uint32_t combined)
{
    struct nl_msg *message = nic_genl_message(&setter->genl, ETHTOOL_MSG_CHANNELS_SET, NLM_F_ACK);
    if (message == NULL || nic_header_put(message, ETHTOOL_A_CHANNELS_HEADER, setter->index) < 0 ||
        nla_put_u32(message, ETHTOOL_A_CHANNELS_COMBINED_COUNT, combined) < 0) {
        nlmsg_free(message);
        return -ENOMEM;
    }
    return setter_call(setter, message);
}

/* There is no netlink message for the device's own values. 0 or -errno. */
static int write_sysfs(const char *interface, const char *file, uint64_t value)
{
    char path[128];
    char text[24];
    int len = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)value);
    (void)snprintf(path, sizeof(path), "/sys/class/net/%.15s/%s", interface, file); /* It fits. */
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    int rc = write(fd, text, (size_t)len) == len ? 0 : -errno;
    close(fd);
    return rc;
}

static int set_defer(const struct nic_setter *setter, uint32_t defer, uint64_t flush_ns)
{
    int rc = write_sysfs(setter->interface, "napi_defer_hard_irqs", defer);
    return rc < 0 ? rc : write_sysfs(setter->interface, "gro_flush_timeout", flush_ns);
}

/* Another family than the rest, opened for the occasion. 0 takes the queue's own length back. */
static int set_buf_len(struct nic_setter *setter, uint32_t queue, uint32_t value)
{
    struct nic_genl genl;
    int rc = nic_genl_open(&genl, NETDEV_FAMILY_NAME, NULL);
    if (rc < 0) {
        return rc;
    }
    struct nl_msg *message = nic_genl_message(&genl, NIC_NETDEV_CMD_QUEUE_SET, NLM_F_ACK);
    if (message == NULL || nla_put_u32(message, NETDEV_A_QUEUE_IFINDEX, setter->index) < 0 ||
        nla_put_u32(message, NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX) < 0 ||
        nla_put_u32(message, NETDEV_A_QUEUE_ID, queue) < 0 ||
        nla_put_u32(message, NIC_NETDEV_A_QUEUE_RX_BUF_LEN, value) < 0) {
        nlmsg_free(message);
        rc = -ENOMEM;
    } else {
        rc = nic_genl_call(&genl, message, NULL, NULL);
        snprintf(setter->words, sizeof(setter->words), "%s", genl.words);
    }
    nic_genl_close(&genl);
    return rc;
}

/* Writes a table by ioctl: the netlink message is newer (6.17) than the drivers it is needed for. `context` 0 is the main one;
 * ETH_RXFH_CONTEXT_ALLOC makes one and becomes its id. */
static int set_rss(struct nic_setter *setter, const uint32_t *table, uint32_t size, uint32_t *context)
{
    size_t bytes = sizeof(struct ethtool_rxfh) + size * sizeof(uint32_t);
    struct ethtool_rxfh *request = calloc(1, bytes);
    if (request == NULL) {
        return -ENOMEM;
    }
    request->cmd = ETHTOOL_SRSSH;
    request->rss_context = *context;
    request->indir_size = size;
    request->hfunc = 0;         /* no change */
    request->input_xfrm = 0xff; /* RXH_XFRM_NO_CHANGE */
    memcpy(request->rss_config, table, size * sizeof(uint32_t));
    int rc = nic_ioctl(setter->interface, request);
    if (rc == -EINVAL) { /* Kernels before input_xfrm demand zero there. */
        request->input_xfrm = 0;
        rc = nic_ioctl(setter->interface, request);
    }
    *context = request->rss_context;
    free(request);
    return rc;
}

/* Equal over `count` queues from `first` on. */
static int set_rss_equal(struct nic_setter *setter, uint32_t size, uint32_t first, uint32_t count,
                         uint32_t *context)
{
    uint32_t *table = calloc(size, sizeof(*table));
    if (table == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < size; i++) {
        table[i] = first + i % count;
    }
    int rc = set_rss(setter, table, size, context);
    free(table);
    return rc;
}

/* No table at all deletes the context. */
static int delete_context(struct nic_setter *setter, uint32_t context)
{
    struct ethtool_rxfh request = {.cmd = ETHTOOL_SRSSH, .rss_context = context};
    return nic_ioctl(setter->interface, &request);
}

static int add_rule(struct nic_setter *setter, const struct nic_step *step)
{
    struct ethtool_rxnfc request = {.cmd = ETHTOOL_SRXCLSRLINS, .fs = step->rule};
    if ((step->rule.flow_type & FLOW_RSS) != 0) {
        request.rss_context = step->context == NIC_CONTEXT_NEW ? setter->context : step->context;
    }
    return nic_ioctl(setter->interface, &request);
}

static int delete_rule(struct nic_setter *setter, uint32_t location)
{
    struct ethtool_rxnfc request = {.cmd = ETHTOOL_SRXCLSRLDEL, .fs.location = location};
    return nic_ioctl(setter->interface, &request);
}

/* ---- journal --------------------------------------------------------------------------------------------------- */

static const struct nic_context *main_context(const struct nic_state *state)
{
    for (uint32_t i = 0; i < state->context_count; i++) {
        if (state->contexts[i].id == 0) {
            return &state->contexts[i];
        }
    }
    return NULL;
}

static int journal_rss(int fd, const struct nic_state *state, const struct nic_step *step)
{
    const struct nic_context *context = main_context(state);
    CHECK(context != NULL); /* nic_plan refuses without a known table. */
    char *line = calloc(1, JOURNAL_LINE_MAX);
    if (line == NULL) {
        return -ENOMEM;
    }
    size_t len = (size_t)snprintf(line, JOURNAL_LINE_MAX, "table %u %u ", context->size, step->value);
    CHECK(context->size <= RSS_SIZE_MAX); /* so that every entry fits */
    for (uint32_t i = 0; i < context->size; i++) {
        len += (size_t)snprintf(line + len, JOURNAL_LINE_MAX - len, "%u,", context->table[i]);
    }
    snprintf(line + len, JOURNAL_LINE_MAX - len, "\n");
    int rc = nic_journal_write(fd, line);
    free(line);
    return rc;
}

static int journal_context(int fd, const struct nic_state *state, const struct nic_step *step)
{
    char line[256];
    size_t len = (size_t)snprintf(line, sizeof(line), "context %u %u ", step->value, step->count);
    for (uint32_t i = 0; i < state->context_count; i++) {
        len += (size_t)snprintf(line + len, sizeof(line) - len, "%u,", state->contexts[i].id);
    }
    CHECK(len + 2 <= sizeof(line)); /* NIC_CONTEXTS_MAX ids fit. */
    memcpy(line + len, "\n", 2);
    return nic_journal_write(fd, line);
}

/* A rule's place is not known before it is in, so it is journalled by its match. */
static int journal_rule(int fd, const struct ethtool_rx_flow_spec *rule)
{
    char line[256];
    bool is_ipv6 = (rule->flow_type & ~FLOW_RSS) == TCP_V6_FLOW;
    snprintf(line, sizeof(line), "rule %u %u %u %u %u %u\n", rule->flow_type,
             is_ipv6 ? 0 : rule->h_u.tcp_ip4_spec.ip4dst,
             is_ipv6 ? rule->h_u.tcp_ip6_spec.pdst : rule->h_u.tcp_ip4_spec.pdst, (unsigned)rule->ring_cookie,
             is_ipv6 ? rule->h_u.tcp_ip6_spec.psrc : rule->h_u.tcp_ip4_spec.psrc,
             is_ipv6 ? rule->m_u.tcp_ip6_spec.psrc : rule->m_u.tcp_ip4_spec.psrc);
    return nic_journal_write(fd, line);
}

static int journal_step(int fd, const struct nic_state *state, const struct nic_step *step)
{
    char line[256];
    switch (step->kind) {
    case NIC_STEP_FEATURE:
        /* Planned only when it was the other way round. */
        snprintf(line, sizeof(line), "feature %s %d %u\n", step->name, step->value == 0 ? 1 : 0, step->value);
        break;
    case NIC_STEP_RINGS:
        snprintf(line, sizeof(line), "rings %d %d %u\n", (int)state->data_split,
                 state->has_hds_thresh ? 1 : 0, state->hds_thresh);
        break;
    case NIC_STEP_CHANNELS:
        snprintf(line, sizeof(line), "channels %u %u\n", state->channels_combined, step->value);
        break;
    case NIC_STEP_RSS:
        return journal_rss(fd, state, step);
    case NIC_STEP_CONTEXT:
        return journal_context(fd, state, step);
    case NIC_STEP_DEFER:
        snprintf(line, sizeof(line), "defer %u %llu %u %llu\n", state->irq_defer,
                 (unsigned long long)state->flush_ns, step->value, (unsigned long long)step->flush_ns);
        break;
    case NIC_STEP_BUF_LEN:
        snprintf(line, sizeof(line), "length %u %u %u\n", step->queue, step->found, step->value);
        break;
    default:
        return journal_rule(fd, &step->rule);
    }
    return nic_journal_write(fd, line);
}

/* ---- apply ----------------------------------------------------------------------------------------------------- */

static int apply_step(struct nic_setter *setter, const struct nic_state *state, const struct nic_step *step)
{
    uint32_t context = 0;
    setter->words[0] = '\0';
    switch (step->kind) {
    case NIC_STEP_FEATURE:
        return set_feature(setter, step->name, step->value != 0);
    case NIC_STEP_RINGS:
        return set_rings(setter, step->data_split, state->has_hds_thresh, 0);
    case NIC_STEP_CHANNELS:
        return set_channels(setter, step->value);
    case NIC_STEP_RSS:
        return set_rss_equal(setter, main_context(state)->size, 0, step->value, &context);
    case NIC_STEP_CONTEXT:
        setter->context = ETH_RXFH_CONTEXT_ALLOC;
        return set_rss_equal(setter, main_context(state)->size, step->value, step->count, &setter->context);
    case NIC_STEP_DEFER:
        return set_defer(setter, step->value, step->flush_ns);
    case NIC_STEP_BUF_LEN:
        return set_buf_len(setter, step->queue, step->value);
    default:
        return add_rule(setter, step);
    }
}

static int apply_steps(struct nic_setter *setter, const struct nic_state *state, const struct nic_plan *plan,
                       int journal, struct err *err)
{
    char ours[64];
    snprintf(ours, sizeof(ours), "ours %u %u\n", plan->queue_first, plan->queue_count);
    int ours_rc = plan->queue_count > 0 ? nic_journal_write(journal, ours) : 0;
    if (ours_rc < 0) {
        return err_set(err, ours_rc, "cannot write the journal of %s: %s", state->name, err_text(ours_rc));
    }
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct nic_step *step = &plan->steps[i];
        int rc = journal_step(journal, state, step);
        if (rc < 0) {
            return err_set(err, rc, "cannot write the journal of %s: %s", state->name, err_text(rc));
        }
        rc = apply_step(setter, state, step);
        if (rc < 0 && step->is_optional) {
            LOG_WRN("nic_unchanged", "interface=%s command=%s error=%s", state->name, LOG_Q(step->command),
                    LOG_Q(err_text(rc)));
            continue;
        }
        if (rc < 0) {
            return err_set(err, rc, "%s: `%s` was refused: %s%s%s", state->name, step->command, err_text(rc),
                           setter->words[0] != '\0' ? ": " : "", setter->words);
        }
        LOG_INF("nic_changed", "interface=%s command=%s", state->name, LOG_Q(step->command));
    }
    return 0;
}

static int undo_journal(const char *interface, const char *directory, off_t from, struct err *err);

int nic_apply(const struct nic_state *state, const struct nic_plan *plan, const char *directory,
              struct err *err)
{
    if (plan->refusal_count > 0) {
        return err_set(err, -EOPNOTSUPP, "%s", plan->refusals[0]);
    }
    if (plan->step_count == 0) {
        return 0;
    }
    struct nic_setter setter;
    int rc = setter_open(&setter, state->name, err);
    if (rc < 0) {
        return rc;
    }
    off_t before = 0; /* What stands there belongs to another listener of this NIC, which keeps it. */
    int journal = nic_journal_append(directory, state->name, &before);
    if (journal < 0) {
        nic_genl_close(&setter.genl);
        return err_set(err, journal, "cannot open a journal in %s: %s", directory, err_text(journal));
    }
    rc = apply_steps(&setter, state, plan, journal, err);
    close(journal);
    nic_genl_close(&setter.genl);
    if (rc < 0) {
        struct err undo_err = {""};
        if (undo_journal(state->name, directory, before, &undo_err) < 0) {
            LOG_ERR("nic_undo_failed", "interface=%s error=%s", state->name, LOG_Q(undo_err.text));
        }
    }
    return rc;
}

/* ---- undo ------------------------------------------------------------------------------------------------------ */

/* Reads SIZE entries `Q,Q,...`, each with its comma. */
static int table_parse(const char *text, uint32_t *table, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        char *end = NULL;
        table[i] = (uint32_t)strtoul(text, &end, 10);
        if (end == text || *end != ',') {
            return -EBADMSG;
        }
        text = end + 1;
    }
    return 0;
}

/* Is the main table still the one that was set: equal over the first `set` queues? */
static bool is_table_ours(const struct nic_context *context, uint32_t size, uint32_t set)
{
    if (context == NULL || context->size != size) {
        return false;
    }
    for (uint32_t i = 0; i < size; i++) {
        if (context->table[i] != i % set) {
            return false;
        }
    }
    return true;
}

static int undo_table(struct nic_setter *setter, struct nic_state *state, const char *text)
{
    unsigned size = 0;
    unsigned set = 0;
    int used = 0;
    uint32_t context = 0;
    if (sscanf(text, "%u %u %n", &size, &set, &used) != 2 || used == 0 || size == 0 || size > RSS_SIZE_MAX ||
        set == 0) {
        return -EBADMSG;
    }
    uint32_t *table = calloc(size, sizeof(*table));
    if (table == NULL) {
        return -ENOMEM;
    }
    int rc = table_parse(text + used, table, size);
    if (rc == 0 && !is_table_ours(main_context(state), size, set)) {
        LOG_INF("nic_left_alone", "interface=%s what=%s", state->name,
                LOG_Q("the RSS table is not what was set"));
    } else if (rc == 0) {
        rc = set_rss(setter, table, size, &context);
        if (rc == 0) { /* An older line compares with what this one has put back. */
            memcpy(main_context(state)->table, table, size * sizeof(*table));
        }
    }
    free(table);
    return rc;
}

/* A line of an earlier version. */
static int undo_rss(struct nic_setter *setter, const char *text)
{
    unsigned size = 0;
    int used = 0;
    uint32_t context = 0;
    if (sscanf(text, "%u %n", &size, &used) != 1 || used == 0 || size == 0 || size > RSS_SIZE_MAX) {
        return -EBADMSG;
    }
    uint32_t *table = calloc(size, sizeof(*table));
    if (table == NULL) {
        return -ENOMEM;
    }
    int rc = table_parse(text + used, table, size);
    rc = rc == 0 ? set_rss(setter, table, size, &context) : rc;
    free(table);
    return rc;
}

/* Deletes the context that was made: over our queues, and not among those that were found. */
static int undo_context(struct nic_setter *setter, const struct nic_state *state, const char *text)
{
    unsigned first = 0;
    unsigned count = 0;
    int used = 0;
    if (sscanf(text, "%u %u %n", &first, &count, &used) != 2 || used == 0) {
        return -EBADMSG;
    }
    for (uint32_t i = 0; i < state->context_count; i++) {
        const struct nic_context *context = &state->contexts[i];
        bool was_found = false;
        char *end = NULL;
        for (const char *at = text + used; *at != '\0'; at = end + 1) {
            was_found |= strtoul(at, &end, 10) == context->id;
            if (end == at || *end != ',') {
                return -EBADMSG;
            }
        }
        if (!was_found && nic_context_is_over(context, first, count)) {
            return delete_context(setter, context->id);
        }
    }
    return 0; /* Journalled but never made, or removed by somebody else. */
}

static int undo_rule(struct nic_setter *setter, const struct nic_state *state, const char *text)
{
    unsigned type = 0;
    unsigned address = 0;
    unsigned port = 0;
    unsigned queue = 0;
    unsigned source = 0;
    unsigned source_mask = 0; /* Journals of earlier versions end before the source. */
    if (sscanf(text, "%u %u %u %u %u %u", &type, &address, &port, &queue, &source, &source_mask) < 4) {
        return -EBADMSG;
    }
    struct ethtool_rx_flow_spec ours;
    bool is_ipv6 = (type & ~FLOW_RSS) == TCP_V6_FLOW;
    nic_flow_rule(is_ipv6, bytes_get_be16(&(uint16_t){(uint16_t)port}), address, queue, &ours);
    *(is_ipv6 ? &ours.h_u.tcp_ip6_spec.psrc : &ours.h_u.tcp_ip4_spec.psrc) = (uint16_t)source;
    *(is_ipv6 ? &ours.m_u.tcp_ip6_spec.psrc : &ours.m_u.tcp_ip4_spec.psrc) = (uint16_t)source_mask;
    for (uint32_t i = 0; i < state->rule_count; i++) {
        const struct ethtool_rx_flow_spec *have = &state->rules[i].spec;
        if (have->flow_type == type && nic_flow_same_match(have, &ours) && have->ring_cookie == queue) {
            return delete_rule(setter, have->location);
        }
    }
    return 0; /* Journalled but never inserted, or removed by somebody else. */
}

static int undo_rings(struct nic_setter *setter, const struct nic_state *state, const char *text)
{
    int split = 0;
    int has_thresh = 0;
    unsigned thresh = 0;
    if (sscanf(text, "%d %d %u", &split, &has_thresh, &thresh) != 3) {
        return -EBADMSG;
    }
    if (state->data_split != NIC_ON || (state->has_hds_thresh && state->hds_thresh != 0)) {
        LOG_INF("nic_left_alone", "interface=%s what=%s", state->name,
                LOG_Q("tcp-data-split or hds-thresh is not what was set"));
        return 0;
    }
    /* "Unknown" means automatic, which is what a driver that reports ON by itself had. */
    int rc = set_rings(setter, (enum nic_switch)split, has_thresh != 0, thresh);
    return rc == -EOPNOTSUPP || rc == -EINVAL ? set_rings(setter, NIC_UNKNOWN, has_thresh != 0, thresh) : rc;
}

/* A provider hides the queue's own length, so what is in force then tells nothing about it. */
static int undo_buf_len(struct nic_setter *setter, const struct nic_state *state, const char *text)
{
    unsigned index = 0;
    unsigned found = 0;
    unsigned set = 0;
    if (sscanf(text, "%u %u %u", &index, &found, &set) != 3 || index >= NIC_QUEUES_MAX) {
        return -EBADMSG;
    }
    const struct nic_queue *queue = &state->queues[index];
    if (index >= state->rx_queues) {
        return 0; /* The queue is gone, and the kernel has forgotten its length with it. */
    }
    if (queue->buf_len != set && !queue->zcrx && !queue->dmabuf) {
        LOG_INF("nic_left_alone", "interface=%s queue=%u rx_buf_len=%u set=%u", state->name, index,
                queue->buf_len, set);
        return 0;
    }
    return set_buf_len(setter, index, found);
}

static int undo_defer(struct nic_setter *setter, const struct nic_state *state, const char *text)
{
    unsigned defer = 0;
    unsigned set_to = 0;
    unsigned long long flush = 0;
    unsigned long long flush_set = 0;
    if (sscanf(text, "%u %llu %u %llu", &defer, &flush, &set_to, &flush_set) != 4) {
        return -EBADMSG;
    }
    if (state->irq_defer == defer && state->flush_ns == flush) {
        return 0;
    }
    bool is_ours = (state->irq_defer == set_to || state->irq_defer == defer) &&
                   (state->flush_ns == flush_set || state->flush_ns == flush); /* perhaps only half was set */
    if (!is_ours) {
        LOG_INF("nic_left_alone", "interface=%s napi_defer_hard_irqs=%u gro_flush_timeout=%llu", state->name,
                state->irq_defer, (unsigned long long)state->flush_ns);
        return 0;
    }
    return set_defer(setter, defer, flush);
}

static int undo_channels(struct nic_setter *setter, struct nic_state *state, uint32_t found, uint32_t set)
{
    if (state->channels_combined != set) {
        LOG_INF("nic_left_alone", "interface=%s channels=%u set=%u", state->name, state->channels_combined,
                set);
        return 0;
    }
    int rc = set_channels(setter, found);
    state->channels_combined = rc == 0 ? found : set; /* An older line compares with it. */
    return rc;
}

/* Is a queue in the hands of another process? Queues of our own may still be closing. */
static bool is_card_shared(const struct nic_state *state, const struct nic_journal *journal)
{
    bool is_ours[NIC_QUEUES_MAX] = {false};
    for (uint32_t i = 0; i < journal->count; i++) {
        unsigned first = 0;
        unsigned count = 0;
        int fields = sscanf(journal->lines[i], "ours %u %u", &first, &count);
        for (uint32_t k = 0; fields == 2 && k < count && first < NIC_QUEUES_MAX && first + k < NIC_QUEUES_MAX;
             k++) {
            is_ours[first + k] = true;
        }
    }
    for (uint32_t i = 0; i < NIC_QUEUES_MAX; i++) {
        if ((state->queues[i].zcrx || state->queues[i].dmabuf) && !is_ours[i]) {
            return true;
        }
    }
    return false;
}

/* What is the card's as a whole, not a queue's or a rule of ours. */
static bool is_line_of_card(const char *line)
{
    static const char *const words[] = {"feature ", "channels ", "rings ", "table ", "rss ", "defer "};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++) {
        if (strncmp(line, words[i], strlen(words[i])) == 0) {
            return true;
        }
    }
    return false;
}

static int undo_wait(struct nic_setter *setter)
{
    snprintf(setter->words, sizeof(setter->words),
             "another process receives into a queue of this card, and needs it as it is");
    return -EBUSY;
}

/* 0, -EBADMSG: not a line of ours, or -errno: it stays to be undone. */
static int undo_line(struct nic_setter *setter, struct nic_state *state, const char *line)
{
    char name[32];
    unsigned found = 0;
    unsigned set = 0;
    if (sscanf(line, "feature %31s %u %u", name, &found, &set) == 3) {
        return set_feature(setter, name, found != 0);
    }
    if (sscanf(line, "channels %u %u", &found, &set) == 2) {
        return undo_channels(setter, state, found, set);
    }
    if (strncmp(line, "rings ", 6) == 0) {
        return undo_rings(setter, state, line + 6);
    }
    if (strncmp(line, "table ", 6) == 0) {
        return undo_table(setter, state, line + 6);
    }
    if (sscanf(line, "ours %u %u", &found, &set) == 2) {
        return 0;
    }
    if (strncmp(line, "rss ", 4) == 0) {
        return undo_rss(setter, line + 4);
    }
    if (strncmp(line, "context ", 8) == 0) {
        return undo_context(setter, state, line + 8);
    }
    if (strncmp(line, "rule ", 5) == 0) {
        return undo_rule(setter, state, line + 5);
    }
    if (strncmp(line, "defer ", 6) == 0) {
        return undo_defer(setter, state, line + 6);
    }
    if (strncmp(line, "length ", 7) == 0) {
        return undo_buf_len(setter, state, line + 7);
    }
    return -EBADMSG;
}

static int undo_each(struct nic_setter *setter, struct nic_state *state, struct nic_journal *journal,
                     struct err *err)
{
    int rc = 0;
    bool is_shared = is_card_shared(state, journal);
    for (uint32_t i = journal->count; i > 0; i--) {
        const char *line = journal->lines[i - 1];
        setter->words[0] = '\0';
        int step_rc = is_shared && is_line_of_card(line) ? undo_wait(setter) : undo_line(setter, state, line);
        if (step_rc == -EBADMSG) {
            journal->is_copied = true;
            LOG_ERR("nic_journal_line_unknown", "path=%s line=%s remedy=%s", journal->path, LOG_Q(line),
                    LOG_Q("the file is kept beside, with .bad behind its name; look what else of it is to be "
                          "put back"));
        }
        journal->is_kept[i - 1] = step_rc < 0 && step_rc != -EBADMSG;
        if (journal->is_kept[i - 1]) {
            rc = err_set(err, step_rc, "%s: undoing `%.60s`: %s%s%s", journal->interface, line,
                         err_text(step_rc), setter->words[0] != '\0' ? ": " : "", setter->words);
        }
    }
    for (uint32_t i = 0; rc < 0 && i < journal->count; i++) {
        journal->is_kept[i] |= strncmp(journal->lines[i], "ours ", 5) == 0; /* for the next time */
    }
    return rc;
}

/* Newest first. What fails stays, the rest is undone all the same; `err` tells of the oldest that failed. */
static int undo_lines(struct nic_journal *journal, struct err *err)
{
    struct nic_setter setter;
    struct nic_state *state = calloc(1, sizeof(*state));
    for (uint32_t i = 0; i < journal->count; i++) {
        journal->is_kept[i] = true; /* until it is undone */
    }
    if (state == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    int rc = nic_read(journal->interface, state, err);
    rc = rc == 0 ? setter_open(&setter, journal->interface, err) : rc;
    if (rc == 0) {
        rc = undo_each(&setter, state, journal, err);
        nic_genl_close(&setter.genl);
    }
    nic_state_free(state);
    free(state);
    return rc;
}

/* Undoes what stands in the journal from byte `from` on. */
static int undo_journal(const char *interface, const char *directory, off_t from, struct err *err)
{
    struct nic_journal journal;
    struct err end_err = {""};
    int rc = nic_journal_read(&journal, directory, interface, from, err);
    if (rc < 0 || journal.text == NULL) {
        return rc;
    }
    if (journal.interface[0] == '\0') {
        LOG_WRN("nic_journal_dropped", "interface=%s why=%s", interface, LOG_Q(journal.gone_why));
    } else {
        rc = undo_lines(&journal, err);
    }
    int end_rc = nic_journal_end(&journal, &end_err);
    if (end_rc < 0) {
        LOG_WRN("nic_journal_kept", "error=%s", LOG_Q(end_err.text));
    }
    if (rc == 0 && journal.interface[0] != '\0') {
        LOG_INF("nic_restored", "interface=%s", journal.interface);
    }
    return rc;
}

int nic_undo(const char *interface, const char *directory, struct err *err)
{
    return undo_journal(interface, directory, 0, err);
}

/* The interface of a file nic-NAME.SUFFIX; false for every other file. */
static bool journal_interface(const char *file, const char *suffix, char interface[IFNAMSIZ])
{
    size_t len = strlen(file);
    size_t tail = strlen(suffix);
    if (strncmp(file, "nic-", 4) != 0 || len <= 4 + tail || len - 4 - tail >= IFNAMSIZ ||
        strcmp(file + len - tail, suffix) != 0) {
        return false;
    }
    snprintf(interface, IFNAMSIZ, "%.*s", (int)(len - 4 - tail), file + 4);
    return true;
}

/* What is kept is older than a journal of the same interface, which therefore goes first. */
static int undo_kept(const char *interface, const char *directory, struct err *err)
{
    char kept[NIC_JOURNAL_PATH_MAX];
    char journal[NIC_JOURNAL_PATH_MAX];
    int rc = nic_undo(interface, directory, err);
    if (rc < 0) {
        return rc;
    }
    rc = nic_journal_path(kept, directory, interface, "kept");
    rc = rc == 0 ? nic_journal_path(journal, directory, interface, "journal") : rc;
    if (rc < 0) {
        return err_set(err, rc, "the journal of %s: the path is too long", interface);
    }
    if (rename(kept, journal) < 0) {
        return err_set(err, -errno, "cannot rename %s: %s", kept, err_text(-errno));
    }
    return nic_undo(interface, directory, err);
}

int nic_undo_all(const char *directory, enum nic_undo_scope scope, struct err *err)
{
    DIR *dir = opendir(directory);
    if (dir == NULL) {
        return errno == ENOENT ? 0 : err_set(err, -errno, "cannot read %s: %s", directory, err_text(-errno));
    }
    int rc = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char interface[IFNAMSIZ];
        int one = 0;
        if (journal_interface(entry->d_name, ".journal", interface)) {
            one = nic_undo(interface, directory, err);
        } else if (scope == NIC_UNDO_ALL && journal_interface(entry->d_name, ".kept", interface)) {
            one = undo_kept(interface, directory, err);
        }
        rc = one < 0 ? one : rc; /* One card that cannot be put back keeps no other from it. */
    }
    closedir(dir);
    return rc;
}

int nic_keep_all(const char *directory, struct err *err)
{
    DIR *dir = opendir(directory);
    if (dir == NULL) {
        return err_set(err, -errno, "cannot read %s: %s", directory, err_text(-errno));
    }
    int rc = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL && rc == 0; entry = readdir(dir)) {
        char interface[IFNAMSIZ];
        char journal[NIC_JOURNAL_PATH_MAX];
        char kept[NIC_JOURNAL_PATH_MAX];
        if (journal_interface(entry->d_name, ".journal", interface) &&
            nic_journal_path(journal, directory, interface, "journal") == 0 &&
            nic_journal_path(kept, directory, interface, "kept") == 0) {
            rc = rename(journal, kept) < 0
                     ? err_set(err, -errno, "cannot rename %s: %s", journal, err_text(-errno))
                     : 0;
        }
    }
    closedir(dir);
    return rc == 0 ? nic_journal_sync(directory) : rc;
}
