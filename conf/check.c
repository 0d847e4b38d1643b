/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check: what no single key can tell: addresses that collide, keys that exclude or need each other. Pure; what needs the host
 * (does the device exist, may the port be bound) is server/preflight.c.
 */
#include <arpa/inet.h>
#include <string.h>

#include "base/bytes.h"
#include "conf/schema_int.h"

/* ---- addresses --------------------------------------------------------------------------------------------------------- */

static uint16_t address_port(const struct conf_address *address)
{
    if (address->addr.ss_family == AF_INET6) {
        return ntohs(((const struct sockaddr_in6 *)&address->addr)->sin6_port);
    }
    return ntohs(((const struct sockaddr_in *)&address->addr)->sin_port);
}

static bool address_is_wildcard(const struct conf_address *address)
{
    if (address->addr.ss_family == AF_INET6) {
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&address->addr)->sin6_addr);
    }
    return ((const struct sockaddr_in *)&address->addr)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool address_is_loopback(const struct conf_address *address)
{
    if (address->addr.ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&address->addr)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return ntohl(((const struct sockaddr_in *)&address->addr)->sin_addr.s_addr) >> 24 == 127;
}

/* The IPv4 address that a socket of either family takes: 127.0.0.1 is also [::ffff:127.0.0.1]. False when it takes none. */
static bool address_v4(const struct conf_address *address, in_addr_t *out)
{
    if (address->addr.ss_family == AF_INET) {
        *out = ((const struct sockaddr_in *)&address->addr)->sin_addr.s_addr;
        return true;
    }
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&address->addr)->sin6_addr;
    memcpy(out, &v6->s6_addr[12], sizeof(*out));
    return IN6_IS_ADDR_V4MAPPED(v6);
}

/* 0.0.0.0 takes its port from every IPv4 address, [::] from every address (our sockets are dual-stack). */
static bool address_collides(const struct conf_address *a, const struct conf_address *b)
{
    if (address_port(a) != address_port(b)) {
        return false;
    }
    if (a->addr.ss_family != b->addr.ss_family) {
        const struct conf_address *v6 = a->addr.ss_family == AF_INET6 ? a : b;
        in_addr_t v4[2] = {0};
        bool are_v4 = address_v4(a, &v4[0]) && address_v4(b, &v4[1]);
        return address_is_wildcard(v6) ||
               (are_v4 && (v4[0] == v4[1] || v4[0] == htonl(INADDR_ANY) || v4[1] == htonl(INADDR_ANY)));
    }
    return address_is_wildcard(a) || address_is_wildcard(b) ||
           memcmp(&a->addr, &b->addr, sizeof(a->addr)) == 0;
}

static int check_collisions(const struct conf *conf, const struct conf_place *place, struct err *err)
{
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(conf->listeners[i].name, conf->listeners[j].name) == 0) {
                return place_error(place, conf->listeners[i].name, err,
                                   "is the name of listeners[%u] already; give each its own", j);
            }
            if (address_collides(&conf->listeners[i].address, &conf->listeners[j].address)) {
                return place_error(
                    place, &conf->listeners[i].address, err,
                    "collides with listener %s (%s); each needs an address and port of its own",
                    conf->listeners[j].name, conf->listeners[j].address.text);
            }
        }
        if (conf->admin.address.len != 0 &&
            address_collides(&conf->listeners[i].address, &conf->admin.address)) {
            return place_error(place, &conf->admin.address, err,
                               "collides with listener %s (%s); each needs an address and port of its own",
                               conf->listeners[i].name, conf->listeners[i].address.text);
        }
    }
    return 0;
}

/* ---- one listener ------------------------------------------------------------------------------------------------------ */

static int check_access(const struct conf_listener *listener, const struct conf_place *place, struct err *err)
{
    bool is_authenticated = listener->access == CONF_ACCESS_AUTHENTICATED;
    if (is_authenticated && listener->protocol == CONF_PROTOCOL_RAW) {
        return place_error(place, &listener->access, err,
                           "a raw stream carries no signature; protocol raw allows anonymous only");
    }
    if (is_authenticated && listener->credentials[0] == '\0') {
        return place_missing(place, listener, "credentials", err,
                             "is missing: access: authenticated needs the file of access keys");
    }
    if (!is_authenticated && listener->credentials[0] != '\0') {
        return place_error(place, listener->credentials, err,
                           "is not used with access: anonymous; write access: authenticated or remove it");
    }
    if (listener->protocol == CONF_PROTOCOL_RAW && !listener->allow_remote_anonymous &&
        !address_is_loopback(&listener->address)) {
        return place_error(place, &listener->address, err,
                           "is not a loopback address, and with protocol raw everybody who reaches it may "
                           "store; allow it with allow_remote_anonymous: true");
    }
    if (!is_authenticated && !listener->allow_remote_anonymous && !address_is_loopback(&listener->address)) {
        return place_error(place, &listener->address, err,
                           "is not a loopback address, and with access: anonymous everybody who reaches it "
                           "may read, write and delete; use "
                           "access: authenticated, or allow it with allow_remote_anonymous: true");
    }
    return 0;
}

static int check_protocol(const struct conf_listener *listener, const struct conf_place *place,
                          struct err *err)
{
    bool is_raw = listener->protocol == CONF_PROTOCOL_RAW;
    if (is_raw && listener->bucket[0] == '\0') {
        return place_missing(place, listener, "bucket", err,
                             "is missing: protocol raw needs the bucket that objects land in");
    }
    if (is_raw && listener->key_template[0] == '\0') {
        return place_missing(
            place, listener, "key_template", err,
            "is missing: protocol raw needs the template of keys, such as \"{date}/{time}-{peer}-{seq}\"");
    }
    const void *const only_raw[] = {listener->bucket, listener->key_template, NULL};
    const void *const only_s3[] = {listener->region, listener->virtual_host_domain,
                                   &listener->compression.type};
    for (size_t i = 0; i < ARRAY_COUNT(only_raw); i++) {
        if (!is_raw && only_raw[i] != NULL && place_is_given(place, only_raw[i])) {
            return place_error(place, only_raw[i], err,
                               "belongs to protocol raw; with s3 the request names it");
        }
        if (is_raw && place_is_given(place, only_s3[i])) {
            return place_error(place, only_s3[i], err, "belongs to protocol s3");
        }
    }
    return 0;
}

/* As netcore/rx/rx_xdp_hub.c wants of each listener, so that the configuration says so and not the start. */
#define XDP_AREA_MIN (64 * 4 * KIB)

/* What the size of an area must be a multiple of: areas share the mapping, and so pages of 1 GiB. */
static uint64_t page_size(enum arena_pages pages)
{
    return pages == ARENA_PAGES_NORMAL ? 4 * KIB : 2 * MIB;
}

static int check_memory(const struct conf_listener *listener, const struct conf_place *place, struct err *err)
{
    char text[BYTES_SIZE_TEXT_MAX];
    uint64_t buffer = listener->rx_buffer_size == 0 ? 4 * KIB : listener->rx_buffer_size;
    uint64_t unit = buffer > page_size(listener->hugepages) ? buffer : page_size(listener->hugepages);
    const void *where = place_is_given(place, &listener->rx_area_size)
                            ? &listener->rx_area_size
                            : (const void *)&listener->rx_buffer_size;
    if (listener->rx_area_size % unit != 0) {
        return place_error(
            place, where, err,
            "rx_area_size must be a multiple of %s (the larger of rx_buffer_size and the page size)",
            bytes_format_size(unit, text));
    }
    if (listener->rx_area_size / buffer < 8) {
        return place_error(place, where, err, "rx_area_size must hold at least 8 receive buffers: %s",
                           bytes_format_size(8 * buffer, text));
    }
    if (listener->receive == CONF_RECEIVE_AF_XDP && listener->rx_buffer_size > 4 * KIB) {
        return place_error(place, &listener->rx_buffer_size, err,
                           "receive: af_xdp takes frames of 4KiB at most; use 4KiB or 0");
    }
    if (listener->receive == CONF_RECEIVE_AF_XDP && listener->rx_area_size < XDP_AREA_MIN) {
        return place_error(place, where, err,
                           "receive: af_xdp needs an rx_area_size of at least %s: 64 frames of 4KiB",
                           bytes_format_size(XDP_AREA_MIN, text));
    }
    if (listener->receive == CONF_RECEIVE_ZCRX && listener->rx_buffer_size > 4 * KIB &&
        listener->hugepages == ARENA_PAGES_NORMAL) {
        return place_error(
            place, &listener->rx_buffer_size, err,
            "receive: zcrx needs huge pages for buffers above 4KiB; set hugepages: 2MiB or 1GiB");
    }
    return 0;
}

static int check_path(const struct conf *conf, const struct conf_listener *listener,
                      const struct conf_place *place, struct err *err)
{
    bool is_bypass = listener->receive == CONF_RECEIVE_ZCRX || listener->receive == CONF_RECEIVE_AF_XDP;
    if (is_bypass && listener->tls.certificate[0] != '\0') {
        return place_error(place, listener->tls.certificate, err,
                           "TLS works on receive: socket only: on %s payload goes from the NIC to the "
                           "device, and nobody could decrypt it",
                           conf_receive_text(listener->receive));
    }
    if (listener->busy_poll_ns != 0 && listener->receive != CONF_RECEIVE_AF_XDP &&
        listener->receive != CONF_RECEIVE_AUTO) {
        return place_error(place, &listener->busy_poll_ns, err,
                           "only af_xdp polls: set receive: af_xdp or auto, or remove busy_poll");
    }
    if (listener->receive == CONF_RECEIVE_SOCKET) {
        return place_is_given(place, &listener->queues) && listener->rx_buffer_size == 0
                   ? place_error(
                         place, &listener->queues, err,
                         "receive: socket asks nothing of queues but rx_buffer_size; set it, or remove "
                         "queues")
                   : 0;
    }
    if (listener->receive == CONF_RECEIVE_ZCRX && listener->queues.count != 0 &&
        listener->queues.count != conf->node.workers) {
        return place_error(place, &listener->queues, err,
                           "names %u queues for node.workers: %u; one worker serves one queue",
                           listener->queues.count, conf->node.workers);
    }
    return 0;
}

static int check_listeners(const struct conf *conf, const struct conf_place *place, struct err *err)
{
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        const struct conf_listener *listener = &conf->listeners[i];
        int rc = check_protocol(listener, place, err);
        rc = rc != 0 ? rc : check_access(listener, place, err);
        rc = rc != 0 ? rc : check_memory(listener, place, err);
        rc = rc != 0 ? rc : check_path(conf, listener, place, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static bool numbers_equal(const struct conf_numbers *a, const struct conf_numbers *b)
{
    return a->is_auto == b->is_auto && a->count == b->count &&
           memcmp(a->values, b->values, a->count * sizeof(a->values[0])) == 0;
}

/* A worker serves every listener, so it can be pinned in one way only. */
static int check_cpus(const struct conf *conf, const struct conf_place *place, struct err *err)
{
    const struct conf_listener *first = NULL;
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        const struct conf_listener *listener = &conf->listeners[i];
        if (listener->cpus.count == 0 && !listener->cpus.is_auto) {
            continue;
        }
        if (first != NULL && !numbers_equal(&first->cpus, &listener->cpus)) {
            return place_error(
                place, &listener->cpus, err,
                "differs from listener %s; a worker serves every listener, so they must name the same CPUs",
                first->name);
        }
        first = first == NULL ? listener : first;
    }
    return 0;
}

static int check_devices(const struct conf *conf, const struct conf_place *place, struct err *err)
{
    for (uint32_t i = 0; i < conf->store.device_count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(conf->store.devices[i].path, conf->store.devices[j].path) == 0) {
                return place_error(place, conf->store.devices[i].path, err,
                                   "is store.devices[%u] already; name each device once", j);
            }
        }
        if (conf->store.devices[i].size % (4 * KIB) != 0) {
            return place_error(place, &conf->store.devices[i].size, err,
                               "must be a multiple of 4KiB, the block of the store");
        }
    }
    return 0;
}

int check_whole(const struct conf *conf, const struct conf_place *place, struct err *err)
{
    int rc = check_collisions(conf, place, err);
    rc = rc != 0 ? rc : check_devices(conf, place, err);
    rc = rc != 0 ? rc : check_listeners(conf, place, err);
    rc = rc != 0 ? rc : check_cpus(conf, place, err);
    return rc;
}
