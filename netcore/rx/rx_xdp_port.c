/* SPDX-License-Identifier: Apache-2.0 */
/* rx_xdp_port: the XDP program of an interface, shared by the workers. See the header. */
#include "rx/rx_xdp_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define QUEUES_MAX 512U
#define PORT_LISTENS_MAX 256U
#define PORT_WILDS_MAX 32U
#define PLACES_MAX 256U             /* workers */
#define STRAYS_MAX 256U             /* under way to one worker */
#define ADDRESSES_AGAIN_NS NS_PER_S /* addresses that the host gets later belong to "any" too */
#define ATTACH_AGAIN_NS NS_PER_S
#define ABSENT_AGAIN_NS (50 * NS_PER_MS) /* the interface is not there */
#define CARRIER_TRIES                                                                                        \
    500U /* of 20 ms: attaching resets the link of some drivers, and 10GBASE-T takes seconds */

struct port_listen {
    uint8_t addr[16];
    uint16_t port;
    uint32_t users;      /* that listen on this very address */
    uint32_t wild_users; /* 1: it is here for an "any". Both 0: this place is free */
};

struct port_wild {
    uint32_t users; /* 0: this place is free */
    uint16_t port;
    sa_family_t family;
};

/* Strays of one worker: a ring of copies. Guarded by strays_lock. */
struct stray_place {
    bool is_open;
    int event_fd;
    uint32_t frame_max;
    uint32_t first, count;
    uint32_t lens[STRAYS_MAX], hops[STRAYS_MAX];
    uint8_t *frames; /* STRAYS_MAX x frame_max */
};

struct xdp_port {
    struct xdp_port *next;
    char interface[IFNAMSIZ];
    struct xsk_program *program;
    bool is_multi;
    uint32_t users;
    const void *counted_by; /* the user that shows this port's counters */
    bool is_attached;
    uint64_t again_ns; /* attaching is not tried before */
    uint64_t reattached;
    uint32_t queues; /* of the interface, at the last look */
    _Atomic uint64_t generation;
    uint32_t index_sum; /* of all interfaces: changes when one comes or goes */
    _Atomic uint32_t places_open;
    struct stray_place places[PLACES_MAX];
    uint64_t addresses_ns; /* when addresses are looked at again */
    bool is_full_said;
    struct port_wild wilds[PORT_WILDS_MAX];
    struct port_listen listens[PORT_LISTENS_MAX];
};

/* Workers open and close on their own threads. */
static pthread_mutex_t ports_lock = PTHREAD_MUTEX_INITIALIZER;
/* Strays of all ports; never taken together with the other. A segment takes it only when no connection here is its own. */
static pthread_mutex_t strays_lock = PTHREAD_MUTEX_INITIALIZER;
static struct xdp_port *ports;

/* ---- the interface -------------------------------------------------------------------------------------------------- */

static int interface_ioctl(const char *name, unsigned long request, struct ifreq *ifr)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    (void)snprintf(ifr->ifr_name, sizeof(ifr->ifr_name), "%.15s", name);
    int rc = ioctl(fd, request, ifr) != 0 ? -errno : 0;
    close(fd);
    return rc;
}

int xdp_interface_read(const char *name, struct xdp_interface *interface, struct err *err)
{
    struct ifreq ifr = {0};
    int rc = interface_ioctl(name, SIOCGIFMTU, &ifr);
    if (rc < 0) {
        return err_set(err, rc, "interface %s: %s", name, err_text(rc));
    }
    interface->mtu = (uint32_t)ifr.ifr_mtu;
    struct ethtool_ringparam ring = {.cmd = ETHTOOL_GRINGPARAM};
    memset(&ifr, 0, sizeof(ifr));
    ifr.ifr_data = (char *)&ring;
    interface->nic_ring = interface_ioctl(name, SIOCETHTOOL, &ifr) == 0 ? ring.rx_pending : 0;
    return 0;
}

uint32_t xdp_interface_mtu(const char *name)
{
    struct ifreq ifr = {0};
    return interface_ioctl(name, SIOCGIFMTU, &ifr) == 0 ? (uint32_t)ifr.ifr_mtu : 0;
}

uint32_t xdp_interface_queues(const char *name)
{
    struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
    struct ifreq ifr = {.ifr_data = (char *)&channels};
    return interface_ioctl(name, SIOCETHTOOL, &ifr) == 0 ? channels.rx_count + channels.combined_count : 0;
}

static bool is_veth(const char *name)
{
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq ifr = {.ifr_data = (char *)&info};
    return interface_ioctl(name, SIOCETHTOOL, &ifr) == 0 && strcmp(info.driver, "veth") == 0;
}

bool xdp_interface_is_running(const char *name)
{
    struct ifreq ifr = {0};
    return interface_ioctl(name, SIOCGIFFLAGS, &ifr) == 0 && (ifr.ifr_flags & IFF_RUNNING) != 0;
}

static void carrier_wait(const char *name)
{
    for (uint32_t i = 0; i < CARRIER_TRIES; i++) {
        if (xdp_interface_is_running(name)) {
            return;
        }
        struct timespec pause = {.tv_nsec = (long)(20 * NS_PER_MS)};
        nanosleep(&pause, NULL); /* lint: allow: start-up; a reset takes seconds */
    }
    LOG_WRN("xdp_no_carrier", "interface=%s remedy=%s", name,
            LOG_Q("the link did not come back after the XDP program was attached; check cable and peer"));
}

int rx_xdp_try(const char *interface, struct err *err)
{
    /* The one that a node would attach: the kernel may take one of the two only. */
    struct xsk_program_options options = {.interface = interface,
                                          .queues = QUEUES_MAX,
                                          .want_multi = xdp_interface_mtu(interface) > XDP_MTU_ONE_FRAME};
    return xsk_program_try(&options, err);
}

/* ---- sharing -------------------------------------------------------------------------------------------------------- */

static int port_open(const char *interface, bool want_multi, struct xdp_port **out, struct err *err)
{
    struct xdp_port *port = calloc(1, sizeof(*port));
    if (port == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    (void)snprintf(port->interface, sizeof(port->interface), "%.15s", interface);
    port->is_multi = want_multi;
    port->is_attached = true;
    struct xsk_program_options options = {
        .interface = interface, .queues = QUEUES_MAX, .want_multi = want_multi, .allow_generic = true};
    int rc = xsk_program_open(&options, &port->program, err);
    if (rc < 0) {
        free(port);
        return rc;
    }
    port->queues = xdp_interface_queues(interface);
    carrier_wait(interface);
    port->next = ports;
    ports = port;
    *out = port;
    return 0;
}

int xdp_port_take(const char *interface, bool want_multi, struct xdp_port **out, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&ports_lock);
    struct xdp_port *port = ports;
    while (port != NULL && strcmp(port->interface, interface) != 0) {
        port = port->next;
    }
    if (port == NULL) {
        rc = port_open(interface, want_multi, &port, err);
    }
    if (rc == 0 && port != NULL) { /* port_open gives one whenever it succeeds. */
        port->users++;
        *out = port;
    }
    pthread_mutex_unlock(&ports_lock);
    return rc;
}

void xdp_port_give(struct xdp_port *port, const void *user)
{
    pthread_mutex_lock(&ports_lock);
    CHECK(port->users > 0);
    port->users--;
    port->counted_by = port->counted_by == user ? NULL : port->counted_by;
    if (port->users == 0) {
        struct xdp_port **link = &ports;
        while (*link != port) {
            link = &(*link)->next;
        }
        *link = port->next;
        xsk_program_close(port->program);
        free(port);
    }
    pthread_mutex_unlock(&ports_lock);
}

struct xsk_program *xdp_port_program(struct xdp_port *port)
{
    return port->program;
}

/* ---- addresses ------------------------------------------------------------------------------------------------------ */

void xdp_address_bytes(const struct sockaddr_storage *address, uint8_t bytes[16], uint16_t *port)
{
    memset(bytes, 0, 16);
    if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
        memcpy(bytes, &in6->sin6_addr, 16);
        *port = ntohs(in6->sin6_port);
        return;
    }
    const struct sockaddr_in *in = (const struct sockaddr_in *)address;
    *port = ntohs(in->sin_port);
    if (in->sin_addr.s_addr != htonl(INADDR_ANY)) {
        bytes[10] = 0xff;
        bytes[11] = 0xff;
        memcpy(bytes + 12, &in->sin_addr, 4);
    }
}

static bool is_any(const uint8_t addr[16])
{
    static const uint8_t any[16];
    return memcmp(addr, any, sizeof(any)) == 0;
}

static struct port_listen *listen_find(struct xdp_port *port, const uint8_t addr[16], uint16_t number)
{
    for (uint32_t i = 0; i < PORT_LISTENS_MAX; i++) {
        struct port_listen *one = &port->listens[i];
        if ((one->users > 0 || one->wild_users > 0) && one->port == number &&
            memcmp(one->addr, addr, 16) == 0) {
            return one;
        }
    }
    return NULL;
}

/* The entry for this address, made and told to the program if there was none. */
static int listen_want(struct xdp_port *port, const uint8_t addr[16], uint16_t number,
                       struct port_listen **out)
{
    *out = listen_find(port, addr, number);
    for (uint32_t i = 0; i < PORT_LISTENS_MAX && *out == NULL; i++) {
        if (port->listens[i].users == 0 && port->listens[i].wild_users == 0) {
            int rc = xsk_program_listen(port->program, addr, number);
            if (rc < 0) {
                return rc;
            }
            port->listens[i].port = number;
            memcpy(port->listens[i].addr, addr, 16);
            *out = &port->listens[i];
        }
    }
    return *out == NULL ? -ENOSPC : 0;
}

static int listen_unwant(struct xdp_port *port, const struct port_listen *one)
{
    return one->users == 0 && one->wild_users == 0 ? xsk_program_unlisten(port->program, one->addr, one->port)
                                                   : 0;
}

/* An IPv6 "any" takes IPv4 too, as sockets do. Addresses that the host has got since are added; one that it has lost harms nobody. */
static int wild_refresh(struct xdp_port *port, const struct port_wild *wild)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) < 0) {
        return -errno;
    }
    int rc = 0;
    for (const struct ifaddrs *one = all; one != NULL && rc == 0; one = one->ifa_next) {
        int family = one->ifa_addr != NULL ? one->ifa_addr->sa_family : AF_UNSPEC;
        if (family == AF_INET || (family == AF_INET6 && wild->family == AF_INET6)) {
            uint8_t addr[16];
            uint16_t unused;
            struct port_listen *listen;
            xdp_address_bytes((const struct sockaddr_storage *)(const void *)one->ifa_addr, addr, &unused);
            rc = listen_want(port, addr, wild->port, &listen);
            if (rc == 0) {
                listen->wild_users = 1;
            }
        }
    }
    freeifaddrs(all);
    return rc;
}

static int wild_listen(struct xdp_port *port, uint16_t number, sa_family_t family)
{
    struct port_wild *place = NULL;
    for (uint32_t i = 0; i < PORT_WILDS_MAX; i++) {
        struct port_wild *wild = &port->wilds[i];
        if (wild->users > 0 && wild->port == number && wild->family == family) {
            wild->users++;
            return 0;
        }
        place = wild->users == 0 && place == NULL ? wild : place;
    }
    if (place == NULL) {
        return -ENOSPC;
    }
    *place = (struct port_wild){.users = 1, .port = number, .family = family};
    int rc = wild_refresh(port, place);
    place->users = rc == 0;
    return rc;
}

static int wild_unlisten(struct xdp_port *port, uint16_t number, sa_family_t family)
{
    bool is_left = false;
    int rc = 0;
    for (uint32_t i = 0; i < PORT_WILDS_MAX; i++) {
        struct port_wild *wild = &port->wilds[i];
        wild->users -= wild->users > 0 && wild->port == number && wild->family == family;
        is_left |= wild->users > 0 && wild->port == number;
    }
    for (uint32_t i = 0; i < PORT_LISTENS_MAX && !is_left; i++) {
        struct port_listen *one = &port->listens[i];
        if (one->wild_users > 0 && one->port == number) {
            one->wild_users = 0;
            int failed = listen_unwant(port, one);
            rc = rc == 0 ? failed : rc;
        }
    }
    return rc;
}

int xdp_port_listen(struct xdp_port *port, const struct sockaddr_storage *address, struct err *err)
{
    uint8_t addr[16];
    uint16_t number;
    struct port_listen *listen = NULL; /* of one address; "any" keeps its own account */
    xdp_address_bytes(address, addr, &number);
    pthread_mutex_lock(&ports_lock);
    int rc = is_any(addr) ? wild_listen(port, number, address->ss_family)
                          : listen_want(port, addr, number, &listen);
    if (rc == 0 && listen != NULL) {
        listen->users++;
    }
    pthread_mutex_unlock(&ports_lock);
    return rc == 0 ? 0
                   : err_set(err, rc, "the XDP program on %s takes no more listeners: %s", port->interface,
                             err_text(rc));
}

void xdp_port_unlisten(struct xdp_port *port, const struct sockaddr_storage *address)
{
    uint8_t addr[16];
    uint16_t number;
    int rc = 0;
    xdp_address_bytes(address, addr, &number);
    pthread_mutex_lock(&ports_lock);
    if (is_any(addr)) {
        rc = wild_unlisten(port, number, address->ss_family);
    } else {
        struct port_listen *listen = listen_find(port, addr, number);
        CHECK(listen != NULL);
        CHECK(listen->users > 0);
        listen->users--;
        rc = listen_unwant(port, listen);
    }
    pthread_mutex_unlock(&ports_lock);
    if (rc < 0) {
        LOG_WRN("xdp_unlisten", "interface=%s error=%s", port->interface, LOG_Q(err_text(rc)));
    }
}

static void wilds_refresh(struct xdp_port *port)
{
    for (uint32_t i = 0; i < PORT_WILDS_MAX; i++) {
        if (port->wilds[i].users > 0 && wild_refresh(port, &port->wilds[i]) < 0 && !port->is_full_said) {
            port->is_full_said = true;
            LOG_WRN("xdp_listeners_full", "interface=%s remedy=%s", port->interface,
                    LOG_Q("more addresses than the XDP program takes; listen on single addresses"));
        }
    }
}

/* ---- strays --------------------------------------------------------------------------------------------------------- */

int xdp_port_strays_open(struct xdp_port *port, uint32_t frame_max, int *event_fd)
{
    int rc = -ENOSPC;
    uint8_t *frames = malloc((size_t)STRAYS_MAX * frame_max);
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (frames == NULL || fd < 0) {
        free(frames);
        return fd < 0 ? -errno : -ENOMEM;
    }
    pthread_mutex_lock(&strays_lock);
    for (uint32_t i = 0; i < PLACES_MAX && rc < 0; i++) {
        if (!port->places[i].is_open) {
            port->places[i] = (struct stray_place){
                .is_open = true, .event_fd = fd, .frame_max = frame_max, .frames = frames};
            port->places_open++;
            rc = (int)i;
        }
    }
    pthread_mutex_unlock(&strays_lock);
    if (rc < 0) {
        free(frames);
        close(fd);
        return rc;
    }
    *event_fd = fd;
    return rc;
}

void xdp_port_strays_close(struct xdp_port *port, int place)
{
    pthread_mutex_lock(&strays_lock);
    CHECK(port->places[place].is_open);
    close(port->places[place].event_fd);
    free(port->places[place].frames);
    port->places[place].is_open = false;
    port->places_open--;
    pthread_mutex_unlock(&strays_lock);
}

uint32_t xdp_port_strays_count(const struct xdp_port *port)
{
    return port->places_open;
}

bool xdp_port_stray_pass(struct xdp_port *port, int place, const struct xdp_stray *stray)
{
    bool is_passed = false;
    pthread_mutex_lock(&strays_lock);
    struct stray_place *to = NULL;
    for (uint32_t i = 1; i < PLACES_MAX && to == NULL; i++) {
        struct stray_place *next = &port->places[((uint32_t)place + i) % PLACES_MAX];
        to = next->is_open ? next : NULL;
    }
    if (to != NULL && to->count < STRAYS_MAX && stray->len <= to->frame_max) {
        uint32_t at = (to->first + to->count) % STRAYS_MAX;
        memcpy(to->frames + (size_t)at * to->frame_max, stray->frame, stray->len);
        to->lens[at] = stray->len;
        to->hops[at] = stray->hops;
        to->count++;
        is_passed = true;
        uint64_t one = 1;
        (void)!write(to->event_fd, &one, sizeof(one)); /* It fails only when it is readable already. */
    }
    pthread_mutex_unlock(&strays_lock);
    return is_passed;
}

bool xdp_port_stray_take(struct xdp_port *port, int place, struct xdp_stray *stray)
{
    pthread_mutex_lock(&strays_lock);
    struct stray_place *from = &port->places[place];
    bool has_one = from->count > 0;
    uint64_t unused;
    if (has_one) {
        stray->len = from->lens[from->first];
        stray->hops = from->hops[from->first];
        memcpy(stray->frame, from->frames + (size_t)from->first * from->frame_max, stray->len);
        from->first = (from->first + 1) % STRAYS_MAX;
        from->count--;
    } else {
        (void)!read(from->event_fd, &unused, sizeof(unused)); /* Nothing is left: readable no more. */
    }
    pthread_mutex_unlock(&strays_lock);
    return has_one;
}

/* ---- watching ------------------------------------------------------------------------------------------------------- */

/* Frames of ours reach the kernel while the program is off; the cover sockets keep it from answering (rx_ktcp.c, ktcp_ignore). */
static void reattach(struct xdp_port *port, uint64_t now_ns)
{
    if (port->is_attached) {
        port->is_attached = false;
        LOG_WRN("xdp_detached", "interface=%s why=%s", port->interface,
                LOG_Q("somebody took the XDP program off, or the interface went; it is attached again"));
    }
    if (now_ns < port->again_ns) {
        return;
    }
    uint32_t queues = xdp_interface_queues(port->interface);
    int rc = xsk_program_reattach(port->program);
    port->again_ns = now_ns + (rc == -ENODEV ? ABSENT_AGAIN_NS : ATTACH_AGAIN_NS);
    if (rc == 0) {
        port->generation++;
        port->is_attached = true;
        port->again_ns = 0;
        port->queues = queues; /* It runs on those at least. */
        port->reattached++;
        LOG_WRN("xdp_reattached", "interface=%s generic=%d", port->interface,
                xsk_program_is_generic(port->program));
    } else if (rc != -ENODEV) {
        struct err err;
        (void)xsk_program_refused(rc, true, port->interface, "", &err); /* rc is known. */
        LOG_ERR("xdp_not_reattached", "interface=%s error=%s", port->interface, LOG_Q(err.text));
    }
}

/* veth runs a program on the queues that there were when it was attached (veth_set_channels gives later ones a NAPI instance and no
 * program): frames of a new one would go to the kernel, which drops them. Others set every queue up anew, and some reset the link
 * when a program is attached, so they are left alone. */
static void queues_refresh(struct xdp_port *port, uint64_t now_ns)
{
    uint32_t queues = xdp_interface_queues(port->interface);
    if (queues <= port->queues || !port->is_attached) {
        return; /* Attaching again looks at them, too. */
    }
    if (is_veth(port->interface)) {
        port->is_attached = false; /* Nobody else took it off, so nothing is said of that. */
        reattach(port, now_ns);
    }
    port->queues = queues;
}

static void interfaces_refresh(struct xdp_port *port)
{
    uint32_t sum = 0;
    struct if_nameindex *all = if_nameindex();
    for (const struct if_nameindex *one = all; one != NULL && one->if_index != 0; one++) {
        sum = sum * 31 + one->if_index;
    }
    if (all != NULL) {
        if_freenameindex(all);
    }
    port->generation += sum != port->index_sum;
    port->index_sum = sum;
}

uint64_t xdp_port_generation(const struct xdp_port *port)
{
    return port->generation;
}

bool xdp_port_watch(struct xdp_port *port, uint64_t now_ns)
{
    pthread_mutex_lock(&ports_lock);
    if (!xsk_program_is_attached(port->program)) {
        reattach(port, now_ns);
    } else {
        (void)xsk_program_refresh(port->program); /* It keeps the address it had. */
    }
    if (now_ns >= port->addresses_ns) {
        port->addresses_ns = now_ns + ADDRESSES_AGAIN_NS;
        wilds_refresh(port);
        interfaces_refresh(port);
        queues_refresh(port, now_ns);
    }
    bool is_attached = port->is_attached;
    pthread_mutex_unlock(&ports_lock);
    return is_attached;
}

bool rx_xdp_is_attached(const char *interface)
{
    bool is_attached = false;
    pthread_mutex_lock(&ports_lock);
    for (const struct xdp_port *port = ports; port != NULL; port = port->next) {
        if (strcmp(port->interface, interface) == 0) {
            is_attached = xsk_program_is_attached(port->program);
        }
    }
    pthread_mutex_unlock(&ports_lock);
    return is_attached;
}

bool xdp_port_counters(struct xdp_port *port, const void *user, uint64_t reasons[XSK_PROG_REASONS],
                       uint64_t *reattached)
{
    pthread_mutex_lock(&ports_lock);
    port->counted_by = port->counted_by == NULL ? user : port->counted_by;
    bool is_ours = port->counted_by == user && xsk_program_reasons(port->program, reasons) == 0;
    *reattached = port->reattached;
    pthread_mutex_unlock(&ports_lock);
    return is_ours;
}

/* ---- advice --------------------------------------------------------------------------------------------------------- */

/* A listener's address is looked for on the interface itself, on what is stacked on it (VLANs), and on lo (addresses of a service). */
static bool is_name_ours(const char *name, const char *interface)
{
    char path[64];
    if (strcmp(name, interface) == 0 || strcmp(name, "lo") == 0) {
        return true;
    }
    (void)snprintf(path, sizeof(path), "/sys/class/net/%.15s/upper_%.15s", interface, name); /* It fits. */
    return access(path, F_OK) == 0;
}

/* Which source would the kernel use for a neighbour of this address? A route that leads elsewhere means that peers reach us through
 * one interface and everybody else would answer through another. No packet is sent. */
static void route_advise(const char *interface, const struct ifaddrs *one)
{
    if (one->ifa_addr->sa_family != AF_INET || strcmp(one->ifa_name, interface) != 0) {
        return;
    }
    struct sockaddr_in neighbour = *(const struct sockaddr_in *)(const void *)one->ifa_addr;
    struct sockaddr_in source = {0};
    socklen_t len = sizeof(source);
    neighbour.sin_addr.s_addr ^= htonl(1);
    neighbour.sin_port = htons(9);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    if (connect(fd, (const struct sockaddr *)&neighbour, sizeof(neighbour)) == 0 &&
        getsockname(fd, (struct sockaddr *)&source, &len) == 0 &&
        source.sin_addr.s_addr !=
            ((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr.s_addr) {
        char text[INET_ADDRSTRLEN] = "";
        (void)inet_ntop(AF_INET, &source.sin_addr, text, sizeof(text));
        LOG_WRN("xdp_route", "interface=%s source=%s note=%s", interface, text,
                LOG_Q("the kernel reaches neighbours of the listener's address with another source; af_xdp "
                      "answers the way a packet came, other programs do not"));
    }
    close(fd);
}

void xdp_interface_advise(const char *name, const struct sockaddr_storage *address)
{
    uint8_t wanted[16];
    uint8_t have[16];
    uint16_t port;
    uint16_t unused;
    bool is_found = false;
    struct ifaddrs *all = NULL;
    xdp_address_bytes(address, wanted, &port);
    if (getifaddrs(&all) < 0) {
        return;
    }
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (one->ifa_addr == NULL ||
            (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6)) {
            continue;
        }
        xdp_address_bytes((const struct sockaddr_storage *)(const void *)one->ifa_addr, have, &unused);
        if (is_name_ours(one->ifa_name, name) && (is_any(wanted) || memcmp(have, wanted, 16) == 0)) {
            is_found = true;
            route_advise(name, one);
        }
    }
    freeifaddrs(all);
    if (!is_found) {
        LOG_WRN("xdp_address", "interface=%s port=%u why=%s", name, port,
                LOG_Q("the listener's address is not this interface's, nor of a VLAN on it: peers that come "
                      "through another interface are served by the kernel, with a copy"));
    }
}
