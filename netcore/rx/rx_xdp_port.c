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
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define QUEUES_MAX 512U
#define PORT_LISTENS_MAX 256U
#define CARRIER_TRIES                                                                                        \
    500U /* of 20 ms: attaching resets the link of some drivers, and 10GBASE-T takes seconds */

struct port_listen {
    uint8_t addr[16];
    uint16_t port;
    uint32_t users; /* 0: this place is free */
};

struct xdp_port {
    struct xdp_port *next;
    char interface[IFNAMSIZ];
    struct xsk_program *program;
    bool is_multi;
    uint32_t users;
    struct port_listen listens[PORT_LISTENS_MAX];
};

/* Workers open and close on their own threads. The only lock here. */
static pthread_mutex_t ports_lock = PTHREAD_MUTEX_INITIALIZER;
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

static void carrier_wait(const char *name)
{
    for (uint32_t i = 0; i < CARRIER_TRIES; i++) {
        struct ifreq ifr = {0};
        if (interface_ioctl(name, SIOCGIFFLAGS, &ifr) < 0 || (ifr.ifr_flags & IFF_RUNNING) != 0) {
            return;
        }
        struct timespec pause = {.tv_nsec = (long)(20 * NS_PER_MS)};
        nanosleep(&pause, NULL); /* lint: allow: start-up; a reset takes seconds */
    }
    LOG_WRN("xdp_no_carrier", "interface=%s remedy=%s", name,
            LOG_Q("the link did not come back after the XDP program was attached; check cable and peer"));
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
    struct xsk_program_options options = {
        .interface = interface, .queues = QUEUES_MAX, .want_multi = want_multi, .allow_generic = true};
    int rc = xsk_program_open(&options, &port->program, err);
    if (rc < 0) {
        free(port);
        return rc;
    }
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

void xdp_port_give(struct xdp_port *port)
{
    pthread_mutex_lock(&ports_lock);
    CHECK(port->users > 0);
    port->users--;
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

static int listen_one(struct xdp_port *port, const uint8_t addr[16], uint16_t number)
{
    struct port_listen *place = NULL;
    for (uint32_t i = 0; i < PORT_LISTENS_MAX; i++) {
        struct port_listen *one = &port->listens[i];
        if (one->users > 0 && one->port == number && memcmp(one->addr, addr, 16) == 0) {
            one->users++;
            return 0;
        }
        place = one->users == 0 && place == NULL ? one : place;
    }
    if (place == NULL) {
        return -ENOSPC;
    }
    int rc = xsk_program_listen(port->program, addr, number);
    if (rc == 0) {
        *place = (struct port_listen){.port = number, .users = 1};
        memcpy(place->addr, addr, 16);
    }
    return rc;
}

static int unlisten_one(struct xdp_port *port, const uint8_t addr[16], uint16_t number)
{
    for (uint32_t i = 0; i < PORT_LISTENS_MAX; i++) {
        struct port_listen *one = &port->listens[i];
        if (one->users > 0 && one->port == number && memcmp(one->addr, addr, 16) == 0) {
            one->users--;
            return one->users == 0 ? xsk_program_unlisten(port->program, addr, number) : 0;
        }
    }
    return 0; /* an address that the host got after the listener was opened */
}

/* Calls `each` for the address, or for each that the host has if it is "any". An IPv6 "any" takes IPv4 too, as sockets do. */
static int address_each(struct xdp_port *port, const struct sockaddr_storage *address,
                        int (*each)(struct xdp_port *port, const uint8_t addr[16], uint16_t number))
{
    static const uint8_t any[16];
    uint8_t bytes[16];
    uint16_t number;
    uint16_t unused;
    xdp_address_bytes(address, bytes, &number);
    if (memcmp(bytes, any, sizeof(any)) != 0) {
        return each(port, bytes, number);
    }
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) < 0) {
        return -errno;
    }
    int rc = 0;
    for (const struct ifaddrs *one = all; one != NULL && rc == 0; one = one->ifa_next) {
        int family = one->ifa_addr != NULL ? one->ifa_addr->sa_family : AF_UNSPEC;
        if (family == AF_INET || (family == AF_INET6 && address->ss_family == AF_INET6)) {
            xdp_address_bytes((const struct sockaddr_storage *)one->ifa_addr, bytes, &unused);
            rc = each(port, bytes, number);
        }
    }
    freeifaddrs(all);
    return rc;
}

int xdp_port_listen(struct xdp_port *port, const struct sockaddr_storage *address, struct err *err)
{
    pthread_mutex_lock(&ports_lock);
    int rc = address_each(port, address, listen_one);
    pthread_mutex_unlock(&ports_lock);
    return rc == 0 ? 0
                   : err_set(err, rc, "the XDP program on %s takes no more listeners: %s", port->interface,
                             err_text(rc));
}

void xdp_port_unlisten(struct xdp_port *port, const struct sockaddr_storage *address)
{
    pthread_mutex_lock(&ports_lock);
    int rc = address_each(port, address, unlisten_one);
    pthread_mutex_unlock(&ports_lock);
    if (rc < 0) {
        LOG_WRN("xdp_unlisten", "interface=%s error=%s", port->interface, LOG_Q(err_text(rc)));
    }
}
