/* SPDX-License-Identifier: Apache-2.0 */
/* cpus: reads the interface's NUMA node and the node's CPUs from sysfs. */
#include "server/cpus.h"

#include <ifaddrs.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

bool cpus_list_read(const char *text, struct conf_numbers *out)
{
    struct conf_numbers numbers = {.is_auto = false};
    const char *at = text;
    while (*at != '\0' && *at != '\n') {
        char *end = NULL;
        unsigned long first = strtoul(at, &end, 10);
        unsigned long last = first;
        if (end == at || *at == '-') {
            return false;
        }
        if (*end == '-') {
            at = end + 1;
            last = strtoul(at, &end, 10);
            if (end == at || *at == '-' || last < first) {
                return false;
            }
        }
        for (unsigned long cpu = first; cpu <= last && numbers.count < CONF_NUMBERS_MAX; cpu++) {
            numbers.values[numbers.count++] = (uint32_t)cpu;
        }
        at = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0' && *end != '\n') {
            return false;
        }
    }
    if (numbers.count == 0) {
        return false;
    }
    *out = numbers;
    return true;
}

static bool line_read(const char *path, char *to, int size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool is_read = fgets(to, size, file) != NULL;
    fclose(file);
    return is_read;
}

/* Only families that listeners use are compared. */
static bool address_equal(const struct sockaddr *a, const struct conf_address *b)
{
    if (a == NULL || a->sa_family != b->addr.ss_family) {
        return false;
    }
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)&b->addr)->sin_addr.s_addr;
    }
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)&b->addr)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* The configured interface, or the one that has the listener's address. */
static bool interface_find(const struct conf_listener *listener, char to[CONF_INTERFACE_SIZE])
{
    struct ifaddrs *all = NULL;
    bool is_found = listener->interface[0] != '\0';
    if (is_found) {
        memcpy(to, listener->interface, CONF_INTERFACE_SIZE);
        return true;
    }
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (const struct ifaddrs *one = all; one != NULL && !is_found; one = one->ifa_next) {
        is_found =
            address_equal(one->ifa_addr, &listener->address) && strlen(one->ifa_name) < CONF_INTERFACE_SIZE;
        if (is_found) {
            memcpy(to, one->ifa_name, strlen(one->ifa_name) + 1);
        }
    }
    freeifaddrs(all);
    return is_found;
}

/* CPUs of the interface's NUMA node; false when it has none. */
static bool node_cpus(const char *interface, struct conf_numbers *out)
{
    char path[128];
    char line[4096];
    snprintf(path, sizeof(path), "/sys/class/net/%s/device/numa_node", interface);
    if (!line_read(path, line, sizeof(line))) {
        return false;
    }
    long node = strtol(line, NULL, 10);
    if (node < 0) {
        return false;
    }
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%ld/cpulist", node);
    return line_read(path, line, sizeof(line)) && cpus_list_read(line, out);
}

static void allowed_cpus(struct conf_numbers *out)
{
    cpu_set_t set;
    out->is_auto = false;
    out->count = 0;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return; /* no list: workers are not pinned */
    }
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE && out->count < CONF_NUMBERS_MAX; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            out->values[out->count++] = cpu;
        }
    }
}

void cpus_resolve(struct conf *conf)
{
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        struct conf_listener *listener = &conf->listeners[i];
        char interface[CONF_INTERFACE_SIZE] = "";
        if (!listener->cpus.is_auto) {
            continue;
        }
        bool has_node = interface_find(listener, interface) && node_cpus(interface, &listener->cpus);
        if (!has_node) {
            allowed_cpus(&listener->cpus);
        }
        LOG_INF("cpus_chosen", "listener=%s interface=%s count=%u first=%u why=%s", listener->name,
                LOG_Q(interface), listener->cpus.count, listener->cpus.values[0],
                has_node ? "numa_node" : "no_numa_node");
    }
}
