/* SPDX-License-Identifier: Apache-2.0 */
/* Units of netcore/base. Goal: each helper's contract, with its limits; method: direct calls. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mpsc.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/uring.h"

Test(bytes, sizes_are_read_in_binary_units_only)
{
    static const struct {
        const char *text;
        int rc;
        uint64_t value;
    } rows[] = {
        {"0", 0, 0},
        {"4096", 0, 4096},
        {"1B", 0, 1},
        {"128KiB", 0, 131072},
        {"64MiB", 0, 67108864},
        {"4GiB", 0, 4294967296},
        {"16777215TiB", 0, 16777215 * TIB},
        {"16777216TiB", -ERANGE, 0},
        {"99999999999999999999", -ERANGE, 0},
        {"", -EINVAL, 0},
        {"KiB", -EINVAL, 0},
        {"1KB", -EINVAL, 0},
        {"1 KiB", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"1.5MiB", -EINVAL, 0},
        {"1kib", -EINVAL, 0},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        uint64_t value = 77;
        int rc = bytes_parse_size(rows[i].text, &value);
        cr_expect(rc == rows[i].rc, "%s: %d", rows[i].text, rc);
        cr_expect(value == (rc == 0 ? rows[i].value : 77), "%s", rows[i].text);
    }
}

Test(bytes, a_formatted_size_reads_back_as_itself)
{
    struct rng rng;
    rng_seed(&rng, 7);
    for (int i = 0; i < 10000; i++) {
        char text[BYTES_SIZE_TEXT_MAX];
        uint64_t back = 0;
        uint64_t value = rng_u64(&rng) >> rng_below(&rng, 64);
        value <<= rng_below(&rng, 2) * 10;
        cr_assert(bytes_parse_size(bytes_format_size(value, text), &back) == 0, "%s", text);
        cr_assert(back == value);
    }
}

Test(bytes, loads_and_stores_agree_in_both_orders)
{
    uint8_t raw[8];
    bytes_put_be64(raw, 0x0102030405060708ULL);
    cr_expect(raw[0] == 1 && raw[7] == 8);
    cr_expect(bytes_get_be64(raw) == 0x0102030405060708ULL);
    cr_expect(bytes_get_le64(raw) == 0x0807060504030201ULL);
    bytes_put_le32(raw, 0xa1b2c3d4U);
    cr_expect(bytes_get_be32(raw) == 0xd4c3b2a1U);
    bytes_put_le16(raw, 0x1234);
    cr_expect(bytes_get_be16(raw) == 0x3412);
}

Test(err, every_code_has_its_own_text)
{
    for (int code = ERR_CORRUPT; code < ERR_CODE_LAST; code++) {
        cr_expect(strcmp(err_text(code), "unknown error") != 0, "%d", code);
    }
    cr_expect(strcmp(err_text(-ENOENT), "No such file or directory") == 0);
    cr_expect(strcmp(err_text(-99999), "unknown error") == 0);
}

Test(err, a_prefix_keeps_the_sentence_behind_it)
{
    struct err err = {""};
    cr_expect(err_set(&err, -EINVAL, "value %d", 7) == -EINVAL);
    cr_expect(err_prefix(&err, -EIO, "file %s", "x") == -EIO);
    cr_expect(strcmp(err.text, "file x: value 7") == 0, "%s", err.text);
    cr_expect(err_set(NULL, -EIO, "nobody listens") == -EIO);
}

Test(pool, gives_each_item_once_and_counts_its_peak)
{
    struct pool pool;
    void *items[5];
    cr_assert(pool_open(&pool, 100, 5) == 0);
    for (int i = 0; i < 5; i++) {
        items[i] = pool_take(&pool);
        cr_assert(items[i] != NULL);
        cr_expect((uintptr_t)items[i] % 64 == 0);
        for (int j = 0; j < i; j++) {
            cr_expect(items[i] != items[j]);
        }
    }
    cr_expect(pool_take(&pool) == NULL);
    cr_expect(pool_used(&pool) == 5);
    for (int i = 0; i < 5; i++) {
        pool_give(&pool, items[i]);
    }
    cr_expect(pool_used(&pool) == 0);
    cr_expect(pool.used_peak == 5);
    pool_close(&pool);
}

Test(list, keeps_order_and_survives_removal_inside_a_walk)
{
    struct list head;
    struct list nodes[10];
    int seen = 0;
    list_init(&head);
    for (int i = 0; i < 10; i++) {
        list_init(&nodes[i]);
        list_append(&head, &nodes[i]);
    }
    LIST_FOR_EACH_SAFE(node, &head)
    {
        cr_expect(node == &nodes[seen]);
        if (seen++ % 2 == 0) {
            list_remove(node);
            list_remove(node); /* harmless */
        }
    }
    cr_expect(seen == 10);
    cr_expect(list_take_first(&head) == &nodes[1]);
    cr_expect(!list_is_linked(&nodes[0]) && list_is_linked(&nodes[3]));
}

struct message {
    struct mpsc_node node;
    int producer;
    int number;
};

#define PRODUCERS 4
#define MESSAGES 20000
static struct mpsc queue;
static struct message messages[PRODUCERS][MESSAGES];

static void *produce(void *arg)
{
    struct message *mine = arg;
    for (int i = 0; i < MESSAGES; i++) {
        mpsc_push(&queue, &mine[i].node);
    }
    return NULL;
}

Test(mpsc, every_message_of_every_producer_arrives_once_and_in_its_order)
{
    pthread_t threads[PRODUCERS];
    int next[PRODUCERS] = {0};
    cr_assert(mpsc_open(&queue) == 0);
    for (int i = 0; i < PRODUCERS; i++) {
        for (int j = 0; j < MESSAGES; j++) {
            messages[i][j] = (struct message){.producer = i, .number = j};
        }
        cr_assert(pthread_create(&threads[i], NULL, produce, messages[i]) == 0);
    }
    for (int got = 0; got < PRODUCERS * MESSAGES;) {
        for (struct mpsc_node *node = mpsc_take_all(&queue); node != NULL; node = node->next) {
            const struct message *message = CONTAINER_OF(node, struct message, node);
            cr_assert(message->number == next[message->producer]++);
            got++;
        }
    }
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
    }
    uint64_t wakes = 0;
    cr_expect(read(queue.event_fd, &wakes, sizeof(wakes)) == sizeof(wakes));
    cr_expect(wakes > 0);
    mpsc_close(&queue);
}

static _Atomic int collector_tid;

static void *collect(void *arg)
{
    collector_tid = gettid();
    *(struct mpsc_node **)arg = mpsc_collect(&queue);
    return NULL;
}

static char thread_state(int tid)
{
    char path[64];
    char line[256] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(line, sizeof(line), file) == NULL) {
        line[0] = '\0';
    }
    if (file != NULL) {
        fclose(file);
    }
    const char *name_end = strrchr(line, ')');
    return name_end != NULL ? name_end[2] : '?';
}

/* Method: with an event that blocks, the consumer is caught in the middle of clearing it. If it had taken the nodes before, a node
 * pushed now would signal, and the clearing would swallow that signal: the node would lie there and nobody would wake. */
Test(mpsc, collecting_clears_the_signal_before_it_takes, .timeout = 60)
{
    pthread_t thread;
    struct mpsc_node *got = NULL;
    static struct message pair[2];
    cr_assert(mpsc_open(&queue) == 0);
    close(queue.event_fd);
    queue.event_fd = eventfd(0, EFD_CLOEXEC);
    cr_assert(queue.event_fd >= 0);
    mpsc_push(&queue, &pair[0].node);
    mpsc_clear(&queue);
    cr_assert(pthread_create(&thread, NULL, collect, &got) == 0);
    while (collector_tid == 0 || thread_state(collector_tid) != 'S') {
        sched_yield();
    }
    cr_expect(atomic_load(&queue.head) == &pair[0].node, "still in the queue");
    mpsc_push(&queue, &pair[1].node);
    mpsc_wake(&queue);
    pthread_join(thread, NULL);
    cr_expect(got == &pair[0].node && got->next == &pair[1].node && pair[1].node.next == NULL);
    cr_expect(mpsc_take_all(&queue) == NULL);
    mpsc_close(&queue);
}

/* A signal without a message stays, because looking at an empty queue costs no system call. */
Test(mpsc, collecting_from_an_empty_queue_leaves_the_event_alone)
{
    cr_assert(mpsc_open(&queue) == 0);
    struct pollfd wait = {.fd = queue.event_fd, .events = POLLIN};
    mpsc_wake(&queue);
    cr_expect(mpsc_collect(&queue) == NULL);
    cr_expect(poll(&wait, 1, 0) == 1);
    mpsc_close(&queue);
}

Test(log, values_are_quoted_so_that_a_line_stays_a_line)
{
    cr_expect(strcmp(log_quote("a\"b\\c\nd"), "\"a\\\"b\\\\c\\x0ad\"") == 0, "%s", log_quote("a\"b\\c\nd"));
    char long_text[2000];
    memset(long_text, 'x', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = '\0';
    const char *quoted = log_quote(long_text);
    cr_expect(strlen(quoted) < 512);
    cr_expect(strcmp(quoted + strlen(quoted) - 4, "...\"") == 0);
}

Test(arena, staging_and_area_are_one_mapping)
{
    struct arena arena;
    struct err err = {""};
    struct arena_options options = {.staging_size = 5000, .area_size = 100000, .numa_node = -1};
    cr_assert(arena_open(&arena, &options, &err) == 0, "%s", err.text);
    cr_expect(arena.staging_size == 8192);
    cr_expect(arena_area_size(&arena) == 102400);
    cr_expect(arena_area(&arena) == arena.base + 8192);
    arena_close(&arena);
}

/* A page of 1 GiB must be reserved at boot on most machines. */
Test(arena, staging_and_area_share_pages_of_1gib)
{
    struct arena arena;
    struct err err = {""};
    struct arena_options options = {
        .staging_size = 5000, .area_size = 64 * MIB, .pages = ARENA_PAGES_1GIB, .numa_node = -1};
    int rc = arena_open(&arena, &options, &err);
    if (rc < 0) {
        cr_expect(strstr(err.text, "huge pages of 1GiB, and 0 are free") != NULL, "%s", err.text);
        cr_skip_test("host: no free huge page of 1 GiB");
    }
    cr_expect(arena.size == GIB && arena.page_size == GIB && arena.staging_size == 2 * MIB);
    cr_expect(((uintptr_t)arena_area(&arena) & (2 * MIB - 1)) == 0);
    arena_close(&arena);
}

Test(arena, huge_pages_that_are_not_there_are_refused_with_the_numbers)
{
    struct arena arena;
    struct err err = {""};
    struct arena_options options = {.area_size = 1024 * GIB, .pages = ARENA_PAGES_1GIB, .numa_node = -1};
    cr_assert(arena_open(&arena, &options, &err) < 0);
    cr_expect(strstr(err.text, "needs 1024 huge pages of 1GiB, and ") != NULL, "%s", err.text);
}

Test(uring, completions_reach_the_handler_of_their_class)
{
    static struct uring uring;
    struct uring_options options = {.sq_entries = 4, .cq_entries = 16, .want_cqe32 = true};
    struct err err = {""};
    cr_assert(uring_open(&uring, &options, &err) == 0, "%s", err.text);
    cr_expect((uring.setup_flags & IORING_SETUP_CQE32) != 0);
    for (int i = 0; i < 10; i++) { /* more than the queue holds: uring_sqe submits by itself */
        struct io_uring_sqe *sqe = uring_sqe(&uring);
        io_uring_prep_nop(sqe);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
    }
    cr_assert(uring_submit_and_wait(&uring, 0) == 0);
    cr_expect(uring_reap(&uring, 3) == 3, "the bound holds");
    cr_expect(uring_reap(&uring, 100) == 7);
    cr_expect(uring.submitted == 10 && uring.completed == 10);
    uring_close(&uring);
}

/* Method: one completion is there from the start; a wait for two ends only with the timeout, a wait for one at once. */
Test(uring, gathering_waits_for_so_many_completions_or_the_timeout)
{
    static struct uring uring;
    struct uring_options options = {.sq_entries = 4, .cq_entries = 16};
    struct err err = {""};
    cr_assert(uring_open(&uring, &options, &err) == 0, "%s", err.text);
    for (uint32_t count = 1; count <= 2; count++) {
        struct io_uring_sqe *sqe = uring_sqe(&uring);
        io_uring_prep_nop(sqe);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
        uint64_t timeout_ns = count == 1 ? TIME_NEVER : 20 * NS_PER_MS;
        uint64_t begin_ns = clock_monotonic_ns();
        cr_assert(uring_submit_and_gather(&uring, count, timeout_ns) == 0);
        cr_expect(count == 1 || clock_monotonic_ns() - begin_ns >= timeout_ns, "it waited for the second");
        cr_expect(uring_reap(&uring, 16) == 1, "what was there is reaped all the same");
    }
    uring_close(&uring);
}

static void side_done(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)op;
    int32_t *results = ctx;
    results[results[0]++ + 1] = cqe->res;
}

/* Method: the only thing that can end the wait is an operation of the side ring: a read that a thread satisfies, once the wait has
 * begun or before. Three in a row, because the second and third find the signal used before. */
static void *side_write(void *arg)
{
    ssize_t written = write(*(int *)arg, "x", 1);
    return written == 1 ? arg : NULL;
}

Test(uring, a_completion_of_the_side_ring_ends_the_wait, .timeout = 60)
{
    static struct uring uring;
    static struct uring *side;
    struct uring_options options = {.sq_entries = 4, .cq_entries = 16, .buffers_max = 1};
    struct err err = {""};
    int32_t results[8] = {0};
    static char bytes[4096];
    int ends[2];
    cr_assert(pipe(ends) == 0);
    cr_assert(uring_open(&uring, &options, &err) == 0, "%s", err.text);
    cr_assert(uring_buffer_register(&uring, 0, bytes, sizeof(bytes), &err) == 0, "%s", err.text);
    cr_assert(uring_side_take(&uring, &side, &err) == 0, "%s", err.text);
    cr_expect((side->setup_flags & IORING_SETUP_SQE128) != 0);
    uring_handler_set(side, URING_CLASS_DEV, side_done, results);
    bool is_shared = uring_side_shares_buffers(&uring);
    for (int32_t round = 1; round <= 3; round++) {
        pthread_t thread;
        struct io_uring_sqe *sqe = uring_sqe(side);
        if (is_shared) {
            io_uring_prep_read_fixed(sqe, ends[0], bytes, 1, 0, 0);
        } else {
            io_uring_prep_read(sqe, ends[0], bytes, 1, 0);
        }
        uring_sqe_bind(sqe, URING_CLASS_DEV, NULL);
        cr_assert(uring_submit(&uring) == 0);
        cr_assert(pthread_create(&thread, NULL, side_write, &ends[1]) == 0);
        while (results[0] < round) {
            cr_assert(uring_submit_and_wait(&uring, TIME_NEVER) == 0);
            uring_reap(&uring, 16);
        }
        cr_expect(results[round] == 1, "%d", results[round]);
        pthread_join(thread, NULL);
    }
    uring_side_give(&uring);
    cr_expect(uring.side == NULL);
    uring_close(&uring);
    close(ends[0]);
    close(ends[1]);
}

Test(uring, file_slots_are_given_once_and_reused)
{
    static struct uring uring;
    struct uring_options options = {.sq_entries = 4, .cq_entries = 16, .files_max = 2};
    struct err err = {""};
    cr_assert(uring_open(&uring, &options, &err) == 0, "%s", err.text);
    cr_expect(uring_file_register(&uring, 0) == 0);
    cr_expect(uring_file_register(&uring, 1) == 1);
    cr_expect(uring_file_register(&uring, 2) == -ENOSPC);
    uring_file_unregister(&uring, 0);
    cr_expect(uring_file_register(&uring, 2) == 0);
    uring_close(&uring);
}
