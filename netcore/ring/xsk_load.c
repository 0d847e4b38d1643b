/* SPDX-License-Identifier: Apache-2.0 */
/* xsk_load: the XDP program's loading, attaching and maps. See the header. */
#include "ring/xsk_load.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"

/* The object file that clang made of xsk_prog.bpf.c (ring.mk). */
static const uint8_t xsk_prog_bytes[] __attribute__((aligned(8))) = {
#include "xsk_prog_bytes.h"
};

/* Of the path that it refuses, with every instruction and register: far more than a line, and only for as long as it loads. */
#define VERIFIER_LOG_SIZE (1U << 20)

struct xsk_program {
    struct bpf_object *object;
    int program_fd;
    int link_fd;
    int sockets_fd, listeners_fd, settings_fd, reasons_fd;
    bool is_generic;
    bool allow_generic;
    char interface[IFNAMSIZ];
    uint64_t *per_cpu; /* room for one counter of each CPU, so that reading them later takes no memory */
    int cpus;
};

/* ---- pure ------------------------------------------------------------------------------------------------------- */

const char *xsk_prog_reason_text(enum xsk_prog_reason reason)
{
    static const char *const texts[XSK_PROG_REASONS] = {
        [XSK_PROG_TAKEN] = "taken",
        [XSK_PROG_NO_SOCKET] = "no_socket",
        [XSK_PROG_FRAGMENT] = "fragment",
        [XSK_PROG_UNCLEAR] = "unclear",
        [XSK_PROG_FOREIGN_MAC] = "foreign_mac",
        [XSK_PROG_PASS_NOT_IP] = "pass_not_ip",
        [XSK_PROG_PASS_NOT_TCP] = "pass_not_tcp",
        [XSK_PROG_PASS_NOT_OURS] = "pass_not_ours",
    };
    CHECK((size_t)reason < XSK_PROG_REASONS);
    return texts[reason];
}

const char *xsk_prog_reason_help(enum xsk_prog_reason reason)
{
    static const char *const helps[XSK_PROG_REASONS] = {
        [XSK_PROG_TAKEN] = "ours, given to the socket of its queue",
        [XSK_PROG_NO_SOCKET] = "ours, but no socket on this queue: dropped",
        [XSK_PROG_FRAGMENT] = "first fragment for one of our ports: dropped",
        [XSK_PROG_UNCLEAR] = "TCP for an address of ours whose port cannot be found: dropped",
        [XSK_PROG_FOREIGN_MAC] = "for our address and port, but another station's frame: dropped",
        [XSK_PROG_PASS_NOT_IP] = "neither IPv4 nor IPv6 (ARP): the kernel's",
        [XSK_PROG_PASS_NOT_TCP] = "not TCP (ICMP, neighbour discovery, UDP): the kernel's",
        [XSK_PROG_PASS_NOT_OURS] = "TCP to other addresses or ports, later fragments: the kernel's",
    };
    CHECK((size_t)reason < XSK_PROG_REASONS);
    return helps[reason];
}

void xsk_verifier_line(const char *log, char line[XSK_SAYS_MAX])
{
    /* What it ends with however it went. */
    static const char *const tails[] = {"processed ", "verification time ", "stack depth ", "-- "};
    line[0] = '\0';
    for (const char *at = log; *at != '\0';) {
        size_t len = strcspn(at, "\n");
        bool is_tail = len == 0;
        for (size_t i = 0; i < ARRAY_COUNT(tails); i++) {
            is_tail = is_tail || strncmp(at, tails[i], strlen(tails[i])) == 0;
        }
        if (!is_tail) {
            (void)snprintf(line, XSK_SAYS_MAX, "%.*s", (int)len, at); /* A long line is cut. */
        }
        at += len + (at[len] == '\n' ? 1 : 0);
    }
}

int xsk_program_refused(int rc, bool is_attach, const char *interface, const char *says, struct err *err)
{
    static const struct {
        int rc;
        bool is_attach;
        const char *text;
    } refusals[] = {
        {-EPERM, false,
         "loading an XDP program needs CAP_BPF and CAP_NET_ADMIN (before Linux 5.8: CAP_SYS_ADMIN)"},
        {-ENOSYS, false, "the kernel has no BPF (CONFIG_BPF_SYSCALL)"},
        {-EPERM, true, "attaching an XDP program needs CAP_NET_ADMIN"},
        {-EBUSY, true,
         "another XDP program is attached; end who holds it: bpftool link shows the process, bpftool link "
         "detach id N takes it off; without a link, ip link set dev X xdp off"},
        {-EEXIST, true,
         "another XDP program is attached, or a queue belongs to zero-copy receive of io_uring"},
        {-EOPNOTSUPP, true, "the driver has no XDP"},
        {-EINVAL, true,
         "the driver refuses XDP as it is set: MTU too large for one buffer, LRO, SR-IOV or DCB on, or "
         "on veth a peer with too few queues"},
        {-ENOSPC, true,
         "the driver has no queue left for XDP; on veth the peer has more transmit queues than this end has "
         "receive queues (ethtool -L PEER tx N)"},
        {-ERANGE, true, "the MTU is too large for XDP without frames of several buffers"},
        {-ENOMEM, true,
         "the driver has no memory or no queues for XDP; ixgbe takes 128 possible CPUs: boot with "
         "nr_cpus=128"},
        {-ENODEV, true, "the interface does not exist in this network namespace"},
    };
    const char *text = err_text(rc);
    for (size_t i = 0; i < ARRAY_COUNT(refusals); i++) {
        if (refusals[i].rc == rc && refusals[i].is_attach == is_attach) {
            text = refusals[i].text;
        }
    }
    if (says[0] != '\0' && !is_attach) {
        return err_set(err, rc,
                       "XDP on %s: this kernel's verifier refuses the program: %s; CAP_PERFMON, or root, may "
                       "help",
                       interface, says);
    }
    return err_set(err, rc, "XDP on %s: %s%s%s%s", interface, text,
                   says[0] != '\0' ? " (the kernel says: " : "", says, says[0] != '\0' ? ")" : "");
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

/* What the kernel said to an attach that it refused. */
static _Thread_local char kernel_says[XSK_SAYS_MAX];

/* libbpf talks to stderr otherwise; what went wrong is said by us, once. Of its words only the kernel's own are kept. */
static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
    static const char head[] = "Kernel error message: ";
    char line[XSK_SAYS_MAX + sizeof(head)];
    (void)level;
    (void)vsnprintf(line, sizeof(line), format, args); /* A long line is cut. */
    const char *at = strstr(line, head);
    if (at != NULL) {
        (void)snprintf(kernel_says, sizeof(kernel_says), "%.*s", (int)strcspn(at + sizeof(head) - 1, "\n"),
                       at + sizeof(head) - 1);
    }
    return 0;
}

/* With `log`, what the verifier says when it refuses is there afterwards. */
static int object_load(struct xsk_program *program, const struct xsk_program_options *options, char *log)
{
    libbpf_set_print(quiet);
    LIBBPF_OPTS(bpf_object_open_opts, open_options, .object_name = "penstock");
    program->object = bpf_object__open_mem(xsk_prog_bytes, sizeof(xsk_prog_bytes), &open_options);
    if (program->object == NULL) {
        return -errno;
    }
    struct bpf_program *one = bpf_object__find_program_by_name(program->object, "xsk_one");
    struct bpf_program *frags = bpf_object__find_program_by_name(program->object, "xsk_frags");
    struct bpf_map *sockets = bpf_object__find_map_by_name(program->object, "sockets");
    CHECK(one != NULL && frags != NULL && sockets != NULL);
    (void)bpf_program__set_autoload(one, !options->want_multi); /* Fails only after loading. */
    (void)bpf_program__set_autoload(frags, options->want_multi);
    (void)bpf_program__set_log_buf(options->want_multi ? frags : one, log, VERIFIER_LOG_SIZE); /* Likewise. */
    int rc = bpf_map__set_max_entries(sockets, options->queues > 0 ? options->queues : 1);
    if (rc == 0) {
        rc = bpf_object__load(program->object);
    }
    if (rc < 0) {
        return rc;
    }
    program->program_fd = bpf_program__fd(options->want_multi ? frags : one);
    program->sockets_fd = bpf_map__fd(sockets);
    program->listeners_fd = bpf_object__find_map_fd_by_name(program->object, "listeners");
    program->settings_fd = bpf_object__find_map_fd_by_name(program->object, "settings");
    program->reasons_fd = bpf_object__find_map_fd_by_name(program->object, "reasons");
    return 0;
}

static int load(struct xsk_program *program, const struct xsk_program_options *options,
                char says[XSK_SAYS_MAX])
{
    char *log = calloc(1, VERIFIER_LOG_SIZE);
    int rc = log == NULL ? -ENOMEM : object_load(program, options, log);
    if (rc < 0 && log != NULL) {
        xsk_verifier_line(log, says);
    }
    free(log);
    return rc;
}

/* The interface's address, which may change while the program runs. */
static int settings_write(struct xsk_program *program)
{
    struct ifreq request = {0};
    struct xsk_prog_settings settings = {0};
    memcpy(request.ifr_name, program->interface, sizeof(request.ifr_name));
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    int rc = ioctl(fd, SIOCGIFHWADDR, &request) != 0 ? -errno : 0;
    close(fd);
    memcpy(settings.mac, request.ifr_hwaddr.sa_data, sizeof(settings.mac));
    return rc < 0 ? rc : bpf_map_update_elem(program->settings_fd, &(uint32_t){0}, &settings, BPF_ANY);
}

static int attach(struct xsk_program *program)
{
    LIBBPF_OPTS(bpf_link_create_opts, link_options, .flags = XDP_FLAGS_DRV_MODE);
    int index = (int)if_nametoindex(program->interface);
    if (index == 0) {
        return -ENODEV;
    }
    program->link_fd = bpf_link_create(program->program_fd, index, BPF_XDP, &link_options);
    program->is_generic = false;
    if (program->link_fd == -EOPNOTSUPP && program->allow_generic) {
        link_options.flags = XDP_FLAGS_SKB_MODE;
        program->link_fd = bpf_link_create(program->program_fd, index, BPF_XDP, &link_options);
        program->is_generic = true;
    }
    return program->link_fd < 0 ? program->link_fd : 0;
}

/* A refused link says a number only. The same by netlink says why in words; should it work after all, it is undone. */
static void attach_ask(const struct xsk_program *program, char says[XSK_SAYS_MAX])
{
    int index = (int)if_nametoindex(program->interface);
    kernel_says[0] = '\0';
    if (index != 0 && bpf_xdp_attach(index, program->program_fd,
                                     XDP_FLAGS_DRV_MODE | XDP_FLAGS_UPDATE_IF_NOEXIST, NULL) == 0) {
        (void)bpf_xdp_detach(index, XDP_FLAGS_DRV_MODE, NULL); /* Nothing else can be done about it. */
    }
    memcpy(says, kernel_says, XSK_SAYS_MAX);
}

static void program_free(struct xsk_program *program)
{
    bpf_object__close(program->object);
    free(program->per_cpu);
    free(program);
}

int xsk_program_open(const struct xsk_program_options *options, struct xsk_program **out, struct err *err)
{
    struct xsk_program *program = calloc(1, sizeof(*program));
    if (program == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    (void)snprintf(program->interface, sizeof(program->interface), "%.15s", options->interface);
    program->allow_generic = options->allow_generic;
    program->link_fd = -1;
    program->cpus = libbpf_num_possible_cpus();
    program->per_cpu = program->cpus > 0 ? calloc((size_t)program->cpus, sizeof(*program->per_cpu)) : NULL;
    bool is_attach = false;
    char says[XSK_SAYS_MAX] = "";
    int rc = program->per_cpu == NULL ? -ENOMEM : load(program, options, says);
    if (rc == 0) {
        is_attach = true;
        rc = settings_write(program);
    }
    if (rc == 0) {
        rc = attach(program);
        if (rc < 0 && rc != -EPERM && rc != -ENODEV) {
            attach_ask(program, says);
        }
    }
    if (rc < 0) {
        program_free(program);
        return xsk_program_refused(rc, is_attach, options->interface, says, err);
    }
    *out = program;
    return 0;
}

int xsk_program_try(const struct xsk_program_options *options, struct err *err)
{
    struct xsk_program program = {.link_fd = -1};
    char says[XSK_SAYS_MAX] = "";
    int rc = load(&program, options, says);
    bpf_object__close(program.object);
    return rc < 0 ? xsk_program_refused(rc, false, options->interface, says, err) : 0;
}

void xsk_program_close(struct xsk_program *program)
{
    if (program->link_fd >= 0) {
        close(program->link_fd); /* The last descriptor of the link: this detaches. */
    }
    program_free(program);
}

bool xsk_program_is_attached(const struct xsk_program *program)
{
    struct bpf_link_info info = {0};
    uint32_t len = sizeof(info);
    return program->link_fd >= 0 && bpf_obj_get_info_by_fd(program->link_fd, &info, &len) == 0 &&
           info.xdp.ifindex != 0;
}

int xsk_program_reattach(struct xsk_program *program)
{
    if (program->link_fd >= 0) {
        close(program->link_fd);
        program->link_fd = -1;
    }
    int rc = settings_write(program);
    rc = rc == 0 ? attach(program) : rc;
    return rc;
}

int xsk_program_refresh(struct xsk_program *program)
{
    return settings_write(program);
}

bool xsk_program_is_generic(const struct xsk_program *program)
{
    return program->is_generic;
}

int xsk_program_fd(const struct xsk_program *program)
{
    return program->program_fd;
}

/* ---- maps --------------------------------------------------------------------------------------------------------- */

static struct xsk_prog_key key_of(const uint8_t addr[16], uint16_t port)
{
    struct xsk_prog_key key = {.port = htons(port)};
    memcpy(key.addr, addr, sizeof(key.addr));
    return key;
}

/* The address's own entry (port 0) counts its listeners, so that it goes with the last one. */
static int address_count(struct xsk_program *program, const uint8_t addr[16], int change)
{
    struct xsk_prog_key key = key_of(addr, 0);
    uint32_t count = 0;
    int rc = bpf_map_lookup_elem(program->listeners_fd, &key, &count);
    if (rc < 0 && rc != -ENOENT) {
        return rc;
    }
    CHECK(change > 0 || count > 0);
    count = change > 0 ? count + 1 : count - 1;
    return count > 0 ? bpf_map_update_elem(program->listeners_fd, &key, &count, BPF_ANY)
                     : bpf_map_delete_elem(program->listeners_fd, &key);
}

int xsk_program_listen(struct xsk_program *program, const uint8_t addr[16], uint16_t port)
{
    CHECK(port != 0);
    struct xsk_prog_key key = key_of(addr, port);
    int rc = bpf_map_update_elem(program->listeners_fd, &key, &(uint32_t){1}, BPF_NOEXIST);
    if (rc < 0) {
        return rc;
    }
    rc = address_count(program, addr, 1);
    if (rc < 0) {
        (void)bpf_map_delete_elem(program->listeners_fd, &key); /* It is there; rc is the one to tell. */
    }
    return rc;
}

int xsk_program_unlisten(struct xsk_program *program, const uint8_t addr[16], uint16_t port)
{
    struct xsk_prog_key key = key_of(addr, port);
    int rc = bpf_map_delete_elem(program->listeners_fd, &key);
    return rc < 0 ? rc : address_count(program, addr, -1);
}

int xsk_program_socket_set(struct xsk_program *program, uint32_t queue, int fd)
{
    uint32_t value = (uint32_t)fd;
    return bpf_map_update_elem(program->sockets_fd, &queue, &value, BPF_ANY);
}

int xsk_program_socket_clear(struct xsk_program *program, uint32_t queue)
{
    return bpf_map_delete_elem(program->sockets_fd, &queue);
}

int xsk_program_reasons(const struct xsk_program *program, uint64_t counts[XSK_PROG_REASONS])
{
    int rc = 0;
    for (uint32_t reason = 0; reason < XSK_PROG_REASONS && rc == 0; reason++) {
        rc = bpf_map_lookup_elem(program->reasons_fd, &reason, program->per_cpu);
        counts[reason] = 0;
        for (int i = 0; i < program->cpus && rc == 0; i++) {
            counts[reason] += program->per_cpu[i];
        }
    }
    return rc;
}
