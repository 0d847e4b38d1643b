/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world: one worker over the simulated receive backend and the store in memory, with virtual time. Included once per
 * test program. Listener 0 speaks S3, listener 1 raw. Nothing moves unless a test turns the worker.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include <criterion/criterion.h>
#include <stdio.h>

#include "../lib/rx_sim.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/uring.h"
#include "fake_store.h"
#include "conf/conf.h"
#include "server/metrics.h"
#include "server/worker.h"

#define WORLD_START_NS (1000 * NS_PER_S)
#define WORLD_WALL_NS (1764500000ULL * NS_PER_S)

struct world {
    struct conf *conf;
    struct worker_shared shared;
    struct metrics_worker *cells;
    struct metrics_listener *listener_cells[2];
    struct store_port *port;
    struct rx *rx[2];
    struct worker worker;
    struct uring uring; /* never opened: rx_open wants a pointer */
    struct arena arena;
    uint64_t now_ns;
};

static const char world_conf[] =
    "node: { name: sim, data_dir: ./run/sim, workers: 1 }\n"
    "store:\n  devices: [ { path: ./run/sim.img, size: 1GiB } ]\n"
    "listeners:\n"
    "  - name: bulk\n    protocol: s3\n    address: '127.0.0.1:9000'\n    access: anonymous\n%s    limits: { "
    "%s }\n"
    "  - name: pipe\n    protocol: raw\n    address: '127.0.0.1:9001'\n    bucket: bkt\n"
    "    key_template: '{listener}-{seq}'\n    limits: { %s }\n";

/* Further lines of the S3 listener, set before world_open. */
static const char *world_s3_lines = "";

/* Cells ask for more alignment than malloc gives. */
static void *world_cells(size_t size)
{
    void *cells = aligned_alloc(128, bytes_round_up(size, 128));
    memset(cells, 0, size);
    return cells;
}

/* `limits` are further keys of both listeners' limits. */
static void world_open_with(struct world *world, const char *limits)
{
    static char text[4096];
    char all[1024];
    struct err err = {{0}};
    memset(world, 0, sizeof(*world));
    snprintf(all, sizeof(all), "connections_max: 64%s%s", limits[0] != '\0' ? ", " : "", limits);
    snprintf(text, sizeof(text), world_conf, world_s3_lines, all, all);
    int rc = conf_parse("sim.yaml", text, strlen(text), &world->conf, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    world->port = fake_port();
    world->cells = world_cells(sizeof(*world->cells));
    struct worker_options options = {.conf = world->conf,
                                     .shared = &world->shared,
                                     .port = world->port,
                                     .cells = world->cells,
                                     .now_ns = WORLD_START_NS,
                                     .random_seed = 1};
    for (int i = 0; i < 2; i++) {
        struct rx_options rx = {
            .name = "sim", .uring = &world->uring, .arena = &world->arena, .conns_max = 4096};
        cr_assert_eq(rx_open(&rx_sim_ops, &rx, &world->rx[i], &err), 0);
        world->listener_cells[i] = world_cells(sizeof(struct metrics_listener));
        options.rx[i] = world->rx[i];
        options.listener_cells[i] = world->listener_cells[i];
    }
    world->now_ns = WORLD_START_NS;
    cr_assert_eq(worker_open(&world->worker, &options, &err), 0, "%s", err.text);
}

static void world_open(struct world *world)
{
    world_open_with(world, "");
}

static void world_turn(struct world *world, uint32_t turns)
{
    for (uint32_t i = 0; i < turns; i++) {
        worker_turn(&world->worker, world->now_ns, WORLD_WALL_NS + (world->now_ns - WORLD_START_NS));
    }
}

/* Lets time pass in steps, so that timers fire in order. */
static void world_wait(struct world *world, uint64_t ns)
{
    uint64_t end = world->now_ns + ns;
    while (world->now_ns < end) {
        uint64_t step = end - world->now_ns;
        world->now_ns += step < 50 * NS_PER_MS ? step : 50 * NS_PER_MS;
        world_turn(world, 1);
    }
}

/* Resets what is left; then nothing may be held by anybody. */
static void world_close(struct world *world)
{
    static struct worker_message stop;
    stop.kind = WORKER_MESSAGE_STOP;
    world->port->is_hanging = false;
    worker_post(&world->worker, &stop);
    world_turn(world, 50);
    cr_assert(worker_is_idle(&world->worker));
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(sim_slices_out(world->rx[i]), 0);
        cr_assert_eq(atomic_load(&world->listener_cells[i]->uploads_in_flight), 0);
        cr_assert_eq(atomic_load(&world->listener_cells[i]->downloads_in_flight), 0);
        rx_close(world->rx[i]);
        free(world->listener_cells[i]);
    }
    cr_assert_eq(atomic_load(&world->cells->connections_used), 0);
    worker_close(&world->worker);
    worker_messages_close(&world->worker);
    fake_port_free(world->port);
    free(world->cells);
    conf_free(world->conf);
}

static struct sim_peer *world_connect(struct world *world)
{
    return sim_connect(world->rx[0], 1);
}

static __attribute__((unused)) struct sim_peer *world_connect_raw(struct world *world)
{
    return sim_connect(world->rx[1], 1);
}

/* The stored payload of bkt/key, or NULL. */
static const struct store_object *world_object(struct world *world, const char *key)
{
    struct store_name name = {.len = (uint16_t)strlen(key)};
    memcpy(name.bytes, key, name.len);
    struct fake_entry *entry = fake_find(world->port, "bkt", &name);
    return entry == NULL ? NULL : entry->object;
}

static __attribute__((unused)) bool world_has(struct world *world, const char *key, const char *payload)
{
    const struct store_object *object = world_object(world, key);
    return object != NULL && object->size == strlen(payload) &&
           memcmp(object->bytes, payload, object->size) == 0;
}

/* Does the peer's answer begin with / contain this? */
static bool got(const struct sim_peer *peer, const char *text)
{
    return strstr(sim_received(peer, NULL), text) != NULL;
}

static bool begins(const struct sim_peer *peer, const char *text)
{
    return strncmp(sim_received(peer, NULL), text, strlen(text)) == 0;
}

static uint32_t answers(const struct sim_peer *peer)
{
    uint32_t count = 0;
    for (const char *at = sim_received(peer, NULL); (at = strstr(at, "HTTP/1.1 ")) != NULL; at++) {
        count++;
    }
    return count;
}

#endif
