/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_read: asks the kernel for everything nic_plan wants to know. Each part answers for itself: a family, message or
 * attribute that this kernel or driver does not have leaves its field unknown.
 */
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <linux/dcbnl.h>
#include <linux/ethtool_netlink.h>
#include <linux/netdev.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <netlink/genl/genl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nic/nic_genl.h"
#include "nic/nic_int.h"

int nic_ioctl(const char *interface, void *command)
{
    struct ifreq request;
    memset(&request, 0, sizeof(request));
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", interface);
    request.ifr_data = command;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    int rc = ioctl(fd, SIOCETHTOOL, &request) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

int nic_header_put(struct nl_msg *message, int attribute, uint32_t index)
{
    struct nlattr *nest = nla_nest_start(message, attribute | NLA_F_NESTED);
    if (nest == NULL || nla_put_u32(message, ETHTOOL_A_HEADER_DEV_INDEX, index) < 0) {
        return -ENOMEM;
    }
    nla_nest_end(message, nest);
    return 0;
}

/* ---- sysfs ----------------------------------------------------------------------------------------------------- */

static bool read_sysfs(const char *interface, const char *file, char *to, size_t size)
{
    char path[512];
    snprintf(path, sizeof(path), "/sys/class/net/%s/%s", interface, file);
    FILE *stream = fopen(path, "re");
    if (stream == NULL) {
        return false;
    }
    bool ok = fgets(to, (int)size, stream) != NULL;
    fclose(stream);
    return ok;
}

static long read_sysfs_number(const char *interface, const char *file, long otherwise)
{
    char text[64];
    return read_sysfs(interface, file, text, sizeof(text)) ? strtol(text, NULL, 0) : otherwise;
}

static uint32_t count_rx_queues(const char *interface)
{
    char path[512];
    uint32_t count = 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/queues", interface);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return 0;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += strncmp(entry->d_name, "rx-", 3) == 0;
    }
    closedir(dir);
    return count;
}

/* What is stacked on the interface and is a VLAN. */
static uint32_t count_vlans(const char *interface)
{
    char path[512];
    uint32_t count = 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s", interface);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return 0;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "upper_", 6) == 0) {
            snprintf(path, sizeof(path), "/proc/net/vlan/%.15s", entry->d_name + 6);
            count += access(path, F_OK) == 0;
        }
    }
    closedir(dir);
    return count;
}

static void read_link(struct nic_state *state)
{
    state->vlans = count_vlans(state->name);
    long flags = read_sysfs_number(state->name, "flags", 0);
    state->up = (flags & IFF_UP) != 0;
    state->carrier = read_sysfs_number(state->name, "carrier", 0) == 1;
    state->mtu = (uint32_t)read_sysfs_number(state->name, "mtu", 0);
    state->numa_node = (int)read_sysfs_number(state->name, "device/numa_node", -1);
    state->virtual_functions = (uint32_t)read_sysfs_number(state->name, "device/sriov_numvfs", 0);
    long defer = read_sysfs_number(state->name, "napi_defer_hard_irqs", -1);
    long flush = read_sysfs_number(state->name, "gro_flush_timeout", -1);
    state->has_irq_defer = defer >= 0 && flush >= 0;
    state->irq_defer = defer > 0 ? (uint32_t)defer : 0;
    state->flush_ns = flush > 0 ? (uint64_t)flush : 0;
    state->rx_queues = count_rx_queues(state->name);
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    if (nic_ioctl(state->name, &info) == 0) {
        snprintf(state->driver, sizeof(state->driver), "%.31s", info.driver);
        snprintf(state->driver_version, sizeof(state->driver_version), "%.31s", info.version);
    }
}

/* ---- ethtool family -------------------------------------------------------------------------------------------- */

static uint32_t attr_u32(struct nlattr **attrs, int attribute)
{
    return attrs[attribute] != NULL ? nla_get_u32(attrs[attribute]) : 0;
}

/* An attribute that the headers do not know yet: 0 unless it is there and a number of that size. */
static uint32_t found_u32(const struct nlattr *first, int len, int attribute)
{
    const struct nlattr *found = nla_find((struct nlattr *)first, len, attribute);
    return found != NULL && nla_len(found) == (int)sizeof(uint32_t) ? nla_get_u32(found) : 0;
}

void nic_parse_rings(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *attrs[ETHTOOL_A_RINGS_MAX + 1];
    if (nla_parse(attrs, ETHTOOL_A_RINGS_MAX, (struct nlattr *)first, len, NULL) < 0) {
        return;
    }
    state->ring_rx = attr_u32(attrs, ETHTOOL_A_RINGS_RX);
    state->ring_rx_max = attr_u32(attrs, ETHTOOL_A_RINGS_RX_MAX);
    state->rx_buf_len = attr_u32(attrs, ETHTOOL_A_RINGS_RX_BUF_LEN);
    if (attrs[ETHTOOL_A_RINGS_TCP_DATA_SPLIT] != NULL) {
        state->data_split = (enum nic_switch)nla_get_u8(attrs[ETHTOOL_A_RINGS_TCP_DATA_SPLIT]);
    }
    state->has_hds_thresh = attrs[ETHTOOL_A_RINGS_HDS_THRESH] != NULL;
    state->hds_thresh = attr_u32(attrs, ETHTOOL_A_RINGS_HDS_THRESH);
    state->hds_thresh_max = attr_u32(attrs, ETHTOOL_A_RINGS_HDS_THRESH_MAX);
    state->rx_buf_len_max = found_u32(first, len, NIC_ETHTOOL_A_RINGS_RX_BUF_LEN_MAX);
}

void nic_parse_channels(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *attrs[ETHTOOL_A_CHANNELS_MAX + 1];
    if (nla_parse(attrs, ETHTOOL_A_CHANNELS_MAX, (struct nlattr *)first, len, NULL) < 0) {
        return;
    }
    state->channels_combined = attr_u32(attrs, ETHTOOL_A_CHANNELS_COMBINED_COUNT);
    state->channels_combined_max = attr_u32(attrs, ETHTOOL_A_CHANNELS_COMBINED_MAX);
    state->channels_rx = attr_u32(attrs, ETHTOOL_A_CHANNELS_RX_COUNT);
    state->channels_rx_max = attr_u32(attrs, ETHTOOL_A_CHANNELS_RX_MAX);
}

struct feature_name {
    const char *name;
    size_t offset;
};

static const struct feature_name feature_names[] = {
    {"rx-gro-hw", offsetof(struct nic_state, gro_hw)},
    {"rx-ntuple-filter", offsetof(struct nic_state, ntuple)},
    {"rx-lro", offsetof(struct nic_state, lro)},
    {"rx-gro", offsetof(struct nic_state, gro)},
    {"rx-vlan-hw-parse", offsetof(struct nic_state, vlan_strip)},
};

static struct nic_feature *feature_of(struct nic_state *state, const char *name)
{
    for (size_t i = 0; i < ARRAY_COUNT(feature_names); i++) {
        if (strcmp(feature_names[i].name, name) == 0) {
            return (struct nic_feature *)((uint8_t *)state + feature_names[i].offset);
        }
    }
    return NULL;
}

enum bitset_use { BITSET_ACTIVE, BITSET_CHANGEABLE };

static void parse_bitset(struct nic_state *state, const struct nlattr *bitset, enum bitset_use use)
{
    struct nlattr *bits =
        bitset != NULL ? nla_find(nla_data(bitset), nla_len(bitset), ETHTOOL_A_BITSET_BITS) : NULL;
    if (bits == NULL) {
        return;
    }
    struct nlattr *bit;
    int left;
    nla_for_each_nested(bit, bits, left)
    {
        struct nlattr *attrs[ETHTOOL_A_BITSET_BIT_MAX + 1];
        if (nla_parse_nested(attrs, ETHTOOL_A_BITSET_BIT_MAX, bit, NULL) < 0 ||
            attrs[ETHTOOL_A_BITSET_BIT_NAME] == NULL) {
            continue;
        }
        struct nic_feature *feature = feature_of(state, nla_get_string(attrs[ETHTOOL_A_BITSET_BIT_NAME]));
        if (feature == NULL) {
            continue;
        }
        if (use == BITSET_CHANGEABLE) {
            feature->changeable = true;
            feature->state = feature->state == NIC_UNKNOWN ? NIC_OFF : feature->state;
        } else {
            feature->state = NIC_ON;
        }
    }
}

/* In these answers the bit lists have no mask: a bit is on when it is named. */
void nic_parse_features(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *attrs[ETHTOOL_A_FEATURES_MAX + 1];
    if (nla_parse(attrs, ETHTOOL_A_FEATURES_MAX, (struct nlattr *)first, len, NULL) < 0) {
        return;
    }
    parse_bitset(state, attrs[ETHTOOL_A_FEATURES_HW], BITSET_CHANGEABLE);
    parse_bitset(state, attrs[ETHTOOL_A_FEATURES_ACTIVE], BITSET_ACTIVE);
}

void nic_parse_rss(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *attrs[ETHTOOL_A_RSS_MAX + 1];
    if (nla_parse(attrs, ETHTOOL_A_RSS_MAX, (struct nlattr *)first, len, NULL) < 0 ||
        attrs[ETHTOOL_A_RSS_INDIR] == NULL || state->context_count == NIC_CONTEXTS_MAX) {
        return;
    }
    struct nlattr *header = attrs[ETHTOOL_A_RSS_HEADER];
    struct nlattr *index =
        header != NULL ? nla_find(nla_data(header), nla_len(header), ETHTOOL_A_HEADER_DEV_INDEX) : NULL;
    if (index != NULL && nla_get_u32(index) != state->index) {
        return; /* A dump lists every interface. */
    }
    struct nic_context *context = &state->contexts[state->context_count];
    uint32_t size = (uint32_t)nla_len(attrs[ETHTOOL_A_RSS_INDIR]) / sizeof(uint32_t);
    context->table = calloc(size > 0 ? size : 1, sizeof(uint32_t));
    if (context->table == NULL) {
        return; /* Then the table is unknown, which planning treats as "may use every queue". */
    }
    memcpy(context->table, nla_data(attrs[ETHTOOL_A_RSS_INDIR]), size * sizeof(uint32_t));
    context->size = size;
    context->id = attr_u32(attrs, ETHTOOL_A_RSS_CONTEXT);
    for (uint32_t i = 0; i < size; i++) {
        if (context->table[i] < NIC_QUEUES_MAX) {
            context->uses[context->table[i]] = true;
        }
    }
    state->context_count++;
}

static int ethtool_get(struct nic_genl *genl, const struct nic_state *state, uint8_t command,
                       int header_attribute, int flags, nic_answer_fn fn)
{
    struct nl_msg *message = nic_genl_message(genl, command, flags);
    if (message == NULL ||
        ((flags & NLM_F_DUMP) != NLM_F_DUMP && nic_header_put(message, header_attribute, state->index) < 0)) {
        nlmsg_free(message);
        return -ENOMEM;
    }
    return nic_genl_call(genl, message, fn, (void *)state);
}

/* Kernels before the netlink message answer by ioctl, for the main table only. */
static void read_rss_ioctl(struct nic_state *state)
{
    struct ethtool_rxfh probe = {.cmd = ETHTOOL_GRSSH};
    if (nic_ioctl(state->name, &probe) < 0 || probe.indir_size == 0 || probe.indir_size > 4096) {
        return;
    }
    size_t bytes = sizeof(probe) + (probe.indir_size + probe.key_size) * sizeof(uint32_t);
    struct ethtool_rxfh *answer = calloc(1, bytes);
    if (answer == NULL) {
        return;
    }
    answer->cmd = ETHTOOL_GRSSH;
    answer->indir_size = probe.indir_size;
    answer->key_size = probe.key_size;
    struct nic_context *context = &state->contexts[0];
    context->table = calloc(probe.indir_size, sizeof(uint32_t));
    if (context->table != NULL && nic_ioctl(state->name, answer) == 0) {
        context->size = probe.indir_size;
        memcpy(context->table, answer->rss_config, probe.indir_size * sizeof(uint32_t));
        for (uint32_t i = 0; i < context->size; i++) {
            if (context->table[i] < NIC_QUEUES_MAX) {
                context->uses[context->table[i]] = true;
            }
        }
        state->context_count = 1;
    } else {
        free(context->table);
        context->table = NULL;
    }
    free(answer);
}

static void read_ethtool(struct nic_state *state)
{
    struct nic_genl genl;
    if (nic_genl_open(&genl, ETHTOOL_GENL_NAME, NULL) < 0) {
        return;
    }
    /* Each may be refused (-EOPNOTSUPP) by a driver that has no such thing. */
    (void)ethtool_get(&genl, state, ETHTOOL_MSG_RINGS_GET, ETHTOOL_A_RINGS_HEADER, 0, nic_parse_rings);
    (void)ethtool_get(&genl, state, ETHTOOL_MSG_CHANNELS_GET, ETHTOOL_A_CHANNELS_HEADER, 0,
                      nic_parse_channels);
    (void)ethtool_get(&genl, state, ETHTOOL_MSG_FEATURES_GET, ETHTOOL_A_FEATURES_HEADER, 0,
                      nic_parse_features);
    if (ethtool_get(&genl, state, ETHTOOL_MSG_RSS_GET, ETHTOOL_A_RSS_HEADER, NLM_F_DUMP, nic_parse_rss) < 0 ||
        state->context_count == 0) {
        read_rss_ioctl(state);
    }
    nic_genl_close(&genl);
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

static void read_rules(struct nic_state *state)
{
    struct ethtool_rxnfc count = {.cmd = ETHTOOL_GRXCLSRLCNT};
    if (nic_ioctl(state->name, &count) < 0 || count.rule_cnt == 0) {
        return;
    }
    size_t bytes = sizeof(struct ethtool_rxnfc) + count.rule_cnt * sizeof(uint32_t);
    struct ethtool_rxnfc *all = calloc(1, bytes);
    if (all == NULL) {
        return;
    }
    all->cmd = ETHTOOL_GRXCLSRLALL;
    all->rule_cnt = count.rule_cnt;
    if (nic_ioctl(state->name, all) == 0) {
        for (uint32_t i = 0; i < all->rule_cnt && state->rule_count < NIC_RULES_MAX; i++) {
            struct ethtool_rxnfc one = {.cmd = ETHTOOL_GRXCLSRULE, .fs.location = all->rule_locs[i]};
            if (nic_ioctl(state->name, &one) == 0) {
                state->rules[state->rule_count++] =
                    (struct nic_rule){.spec = one.fs, .context = one.rss_context};
            }
        }
    }
    free(all);
}

/* ---- netdev family --------------------------------------------------------------------------------------------- */

void nic_parse_dev(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *features = nla_find((struct nlattr *)first, len, NETDEV_A_DEV_XDP_FEATURES);
    if (features != NULL) {
        state->xdp_features = nla_get_u64(features);
        state->xdp_reported = true;
    }
}

void nic_parse_queue(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *attrs[NETDEV_A_QUEUE_MAX + 1];
    if (nla_parse(attrs, NETDEV_A_QUEUE_MAX, (struct nlattr *)first, len, NULL) < 0 ||
        attrs[NETDEV_A_QUEUE_ID] == NULL || attrs[NETDEV_A_QUEUE_TYPE] == NULL ||
        nla_get_u32(attrs[NETDEV_A_QUEUE_TYPE]) != NETDEV_QUEUE_TYPE_RX ||
        nla_get_u32(attrs[NETDEV_A_QUEUE_ID]) >= NIC_QUEUES_MAX) {
        return;
    }
    struct nic_queue *queue = &state->queues[nla_get_u32(attrs[NETDEV_A_QUEUE_ID])];
    state->queue_count++;
    queue->napi_id = attr_u32(attrs, NETDEV_A_QUEUE_NAPI_ID);
    queue->dmabuf = attrs[NETDEV_A_QUEUE_DMABUF] != NULL;
    queue->xsk = attrs[NETDEV_A_QUEUE_XSK] != NULL;
    queue->leased = attrs[NETDEV_A_QUEUE_LEASE] != NULL;
    queue->buf_len = found_u32(first, len, NIC_NETDEV_A_QUEUE_RX_BUF_LEN);
    struct nlattr *ring = attrs[NETDEV_A_QUEUE_IO_URING];
    queue->zcrx = ring != NULL;
    struct nlattr *size =
        ring != NULL ? nla_find(nla_data(ring), nla_len(ring), NETDEV_A_IO_URING_PROVIDER_INFO_RX_BUF_LEN)
                     : NULL;
    queue->zcrx_buf_len = size != NULL ? nla_get_u32(size) : 0;
}

/* The nest is there for pools that an io_uring registration feeds, and for no other. */
void nic_parse_page_pool(void *ctx, const struct nlattr *first, int len)
{
    struct nic_state *state = ctx;
    struct nlattr *attrs[NETDEV_A_PAGE_POOL_MAX + 1];
    if (nla_parse(attrs, NETDEV_A_PAGE_POOL_MAX, (struct nlattr *)first, len, NULL) < 0 ||
        attr_u32(attrs, NETDEV_A_PAGE_POOL_IFINDEX) != state->index ||
        attrs[NETDEV_A_PAGE_POOL_IO_URING] == NULL || attrs[NETDEV_A_PAGE_POOL_DETACH_TIME] != NULL) {
        return; /* A detached pool is of an earlier registration. */
    }
    uint32_t napi_id = attr_u32(attrs, NETDEV_A_PAGE_POOL_NAPI_ID);
    struct nlattr *ring = attrs[NETDEV_A_PAGE_POOL_IO_URING];
    struct nlattr *size = nla_find(nla_data(ring), nla_len(ring), NETDEV_A_IO_URING_PROVIDER_INFO_RX_BUF_LEN);
    struct nlattr *inflight = attrs[NETDEV_A_PAGE_POOL_INFLIGHT];
    for (uint32_t i = 0; i < NIC_QUEUES_MAX; i++) {
        struct nic_queue *queue = &state->queues[i];
        if (queue->zcrx && queue->napi_id == napi_id && napi_id != 0) {
            queue->pool_buf_len = size != NULL ? nla_get_u32(size) : 0;
            /* A number that may have 4 or 8 bytes, as small as it fits. */
            queue->pool_inflight = inflight == NULL         ? 0
                                   : nla_len(inflight) == 4 ? nla_get_u32(inflight)
                                                            : nla_get_u64(inflight);
        }
    }
}

static void read_netdev(struct nic_state *state)
{
    struct nic_genl genl;
    if (nic_genl_open(&genl, NETDEV_FAMILY_NAME, NULL) < 0) {
        return;
    }
    struct nl_msg *message = nic_genl_message(&genl, NETDEV_CMD_DEV_GET, 0);
    if (message != NULL && nla_put_u32(message, NETDEV_A_DEV_IFINDEX, state->index) == 0) {
        (void)nic_genl_call(&genl, message, nic_parse_dev, state); /* Linux 6.3 */
    }
    message = nic_genl_message(&genl, NETDEV_CMD_QUEUE_GET, NLM_F_DUMP);
    if (message != NULL && nla_put_u32(message, NETDEV_A_QUEUE_IFINDEX, state->index) == 0) {
        (void)nic_genl_call(&genl, message, nic_parse_queue, state); /* Linux 6.8 */
    }
    message = nic_genl_message(&genl, NETDEV_CMD_PAGE_POOL_GET, NLM_F_DUMP);
    if (message != NULL) {
        (void)nic_genl_call(&genl, message, nic_parse_page_pool, state); /* Linux 6.8, all interfaces */
    }
    nic_genl_close(&genl);
}

/* ---- XDP ------------------------------------------------------------------------------------------------------- */

static void read_xdp_name(struct nic_state *state)
{
    struct bpf_prog_info info = {0};
    uint32_t len = sizeof(info);
    int fd = state->xdp_program != 0 ? bpf_prog_get_fd_by_id(state->xdp_program) : -1;
    if (fd >= 0 && bpf_obj_get_info_by_fd(fd, &info, &len) == 0) {
        (void)snprintf(state->xdp_name, sizeof(state->xdp_name), "%.15s", info.name);
    }
    if (fd >= 0) {
        close(fd);
    }
}

/* One RTM_GETLINK by hand: libnl 3.7 keeps no XDP attributes. */
static void read_xdp(struct nic_state *state)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg info;
    } request = {
        .header = {.nlmsg_len = sizeof(request), .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
        .info = {.ifi_index = (int)state->index}};
    static __thread uint8_t answer[32768] __attribute__((aligned(NLMSG_ALIGNTO)));
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) {
        return;
    }
    ssize_t len = send(fd, &request, sizeof(request), 0) == (ssize_t)sizeof(request)
                      ? recv(fd, answer, sizeof(answer), 0)
                      : -1;
    close(fd);
    const struct nlmsghdr *header = (const struct nlmsghdr *)answer;
    if (len < (ssize_t)sizeof(request) || header->nlmsg_type != RTM_NEWLINK ||
        header->nlmsg_len > (size_t)len) {
        return;
    }
    struct nlattr *first = (struct nlattr *)(answer + NLMSG_LENGTH(sizeof(struct ifinfomsg)));
    int rest = (int)(header->nlmsg_len - NLMSG_LENGTH(sizeof(struct ifinfomsg)));
    struct nlattr *xdp = nla_find(first, rest, IFLA_XDP);
    struct nlattr *attached = xdp != NULL ? nla_find(nla_data(xdp), nla_len(xdp), IFLA_XDP_ATTACHED) : NULL;
    struct nlattr *program = xdp != NULL ? nla_find(nla_data(xdp), nla_len(xdp), IFLA_XDP_PROG_ID) : NULL;
    state->xdp_attached = attached != NULL && nla_get_u8(attached) != 0;
    state->xdp_program = program != NULL ? nla_get_u32(program) : 0;
    read_xdp_name(state);
}

/* ---- DCB ------------------------------------------------------------------------------------------------------- */

/* One DCB_CMD_GSTATE by hand. A kernel or driver without DCB answers with an error: then it is off. */
static void read_dcb(struct nic_state *state)
{
    struct {
        struct nlmsghdr header;
        struct dcbmsg dcb;
        struct nlattr name_header;
        char name[IFNAMSIZ];
    } request = {
        .header = {.nlmsg_type = RTM_GETDCB, .nlmsg_flags = NLM_F_REQUEST, .nlmsg_len = sizeof(request)},
        .dcb = {.dcb_family = AF_UNSPEC, .cmd = DCB_CMD_GSTATE},
        .name_header = {.nla_len = sizeof(struct nlattr) + IFNAMSIZ, .nla_type = DCB_ATTR_IFNAME}};
    uint8_t answer[1024] __attribute__((aligned(NLMSG_ALIGNTO)));
    memcpy(request.name, state->name, sizeof(request.name));
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) {
        return;
    }
    ssize_t len = send(fd, &request, sizeof(request), 0) == (ssize_t)sizeof(request)
                      ? recv(fd, answer, sizeof(answer), 0)
                      : -1;
    close(fd);
    const struct nlmsghdr *header = (const struct nlmsghdr *)answer;
    int body = NLMSG_LENGTH(sizeof(struct dcbmsg));
    if (len < body || header->nlmsg_len > (size_t)len || header->nlmsg_type != RTM_GETDCB) {
        return;
    }
    struct nlattr *on =
        nla_find((struct nlattr *)(answer + body), (int)header->nlmsg_len - body, DCB_ATTR_STATE);
    state->dcb = on != NULL && nla_get_u8(on) != 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

int nic_read(const char *interface, struct nic_state *state, struct err *err)
{
    memset(state, 0, sizeof(*state));
    if (strlen(interface) >= sizeof(state->name)) {
        return err_set(err, -ENODEV, "interface %s: a name has at most 15 characters", interface);
    }
    snprintf(state->name, sizeof(state->name), "%s", interface);
    state->index = if_nametoindex(interface);
    if (state->index == 0) {
        return err_set(err, -ENODEV, "interface %s does not exist here; `ip link` lists what does",
                       interface);
    }
    read_link(state);
    read_ethtool(state);
    read_rules(state);
    read_netdev(state);
    read_xdp(state);
    read_dcb(state);
    return 0;
}

void nic_state_free(struct nic_state *state)
{
    for (uint32_t i = 0; i < state->context_count; i++) {
        free(state->contexts[i].table);
        state->contexts[i].table = NULL;
    }
    state->context_count = 0;
}

int nic_queue_read(const char *interface, uint32_t queue, struct nic_queue *out, struct err *err)
{
    struct nic_state *state = calloc(1, sizeof(*state));
    if (state == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    int rc = nic_read(interface, state, err);
    if (rc == 0) {
        memset(out, 0, sizeof(*out));
        if (queue < NIC_QUEUES_MAX) {
            *out = state->queues[queue];
        }
        nic_state_free(state);
    }
    free(state);
    return rc;
}
