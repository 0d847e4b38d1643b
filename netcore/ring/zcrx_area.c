/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zcrx_area: registration, reference counts and the refill ring. See the header for the invariants.
 *
 * A buffer's way:  NIC --completion[zcrx_area_take]--> held --last release--> entries written --kernel--> NIC
 *                                                        `--ring full--> late --zcrx_area_refill_late--'
 */
#include "ring/zcrx_area.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"

#define ZCRX_TEXT_MAX 320U
#define ZCRX_ENTRIES_MIN 64U
#define ZCRX_ENTRIES_MAX 32768U /* IO_RQ_MAX_ENTRIES */

/* liburing 2.15's header does not have the event and statistics part of Linux 7.3's linux/io_uring/zcrx.h. */
struct zcrx_event_description {
    uint64_t user_data;
    uint32_t type_mask;
    uint32_t flags;
    uint64_t stats_offset;
    uint64_t reserved[9];
};
#define ZCRX_DESCRIPTION_STATS 1U
#define ZCRX_EVENT_NO_BUFFER 0U /* ZCRX_EVENT_ALLOC_FAIL */
#define ZCRX_CONTROL_ARM_EVENT 2U

/* ---- registration ---------------------------------------------------------------------------------------------- */

static uint32_t zcrx_entry_count(uint64_t len, uint32_t buffer_size)
{
    /* One entry per fragment, and a fragment may be one packet, however large the buffers are. Late entries
     * catch what is beyond. */
    uint64_t want = len / (buffer_size < 2048 ? buffer_size : 2048);
    uint32_t count = ZCRX_ENTRIES_MIN;
    while (count < want && count < ZCRX_ENTRIES_MAX) {
        count *= 2;
    }
    return count;
}

static int zcrx_region_map(struct zcrx_area *area, uint32_t entry_count)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    /* One page for the ring's head and tail (and the statistics behind them), then the entries. */
    area->region_size = bytes_round_up(page + entry_count * sizeof(struct io_uring_zcrx_rqe) + 64, page);
    void *region = mmap(NULL, area->region_size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (region == MAP_FAILED) {
        return -errno;
    }
    area->region = region;
    area->entry_count = entry_count;
    return 0;
}

static int zcrx_register_once(struct zcrx_area *area, const struct zcrx_area_options *options,
                              bool with_stats)
{
    struct io_uring_zcrx_area_reg area_reg = {.addr = (uint64_t)(uintptr_t)options->addr,
                                              .len = options->len};
    struct io_uring_region_desc region = {.user_addr = (uint64_t)(uintptr_t)area->region,
                                          .size = area->region_size,
                                          .flags = IORING_MEM_REGION_TYPE_USER};
    struct zcrx_event_description description = {
        .user_data = options->exhausted_user_data,
        .type_mask = options->exhausted_user_data != 0 ? 1U << ZCRX_EVENT_NO_BUFFER : 0,
        .flags = ZCRX_DESCRIPTION_STATS,
        .stats_offset = area->region_size - 64};
    struct io_uring_zcrx_ifq_reg reg = {.if_idx = options->interface_index,
                                        .if_rxq = options->queue,
                                        .rq_entries = area->entry_count,
                                        .flags = options->no_device ? (uint32_t)ZCRX_REG_NODEV : 0U,
                                        .area_ptr = (uint64_t)(uintptr_t)&area_reg,
                                        .region_ptr = (uint64_t)(uintptr_t)&region,
                                        .rx_buf_len = options->no_device ? 0 : options->buffer_size};
    if (with_stats) {
        /* The field follows rx_buf_len; older headers call it reserved. */
        memcpy((uint8_t *)&reg + offsetof(struct io_uring_zcrx_ifq_reg, rx_buf_len) + sizeof(reg.rx_buf_len),
               &(uint64_t){(uint64_t)(uintptr_t)&description}, sizeof(uint64_t));
    }
    int rc = options->register_fn != NULL ? options->register_fn(&area->uring->ring, &reg)
                                          : io_uring_register_ifq(&area->uring->ring, &reg);
    if (rc < 0) {
        return rc;
    }
    uint8_t *base = area->region;
    area->id = reg.zcrx_id;
    area->token = area_reg.rq_area_token;
    area->ring_head = (uint32_t *)(base + reg.offsets.head);
    area->ring_tail = (uint32_t *)(base + reg.offsets.tail);
    area->entries = (struct io_uring_zcrx_rqe *)(base + reg.offsets.rqes);
    area->kernel_stats = with_stats ? (const uint64_t *)(base + area->region_size - 64) : NULL;
    area->entry_count = reg.rq_entries;
    area->buffer_size = reg.rx_buf_len != 0 ? reg.rx_buf_len : (uint32_t)sysconf(_SC_PAGESIZE);
    return 0;
}

/* Before the registration, which only the end of the ring takes back: a ring that went on without us would keep the queue. */
static int zcrx_buffers_open(struct zcrx_area *area, uint64_t count)
{
    if (count == 0 || count > UINT32_MAX) { /* An index is a fragment's place in a token of 32 bits. */
        return -EINVAL;
    }
    area->buffer_count = (uint32_t)count;
    area->buffers = calloc(area->buffer_count, sizeof(*area->buffers));
    if (area->buffers == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < area->buffer_count; i++) {
        list_init(&area->buffers[i].late_node);
    }
    return 0;
}

/* These three may mean the size; the area's own shape comes before the driver, so it is not asked about what cannot be. */
static bool zcrx_is_about_size(int rc, const struct zcrx_area_options *options)
{
    return options->buffer_size != 0 && !options->no_device &&
           (rc == -EINVAL || rc == -EOPNOTSUPP || rc == -ERANGE);
}

static int zcrx_try(const struct zcrx_area_options *options, uint32_t buffer_size)
{
    struct uring uring;
    struct uring_options ring = {.sq_entries = 4, .cq_entries = 8, .want_cqe32 = true};
    struct zcrx_area area;
    struct zcrx_area_options trial = *options;
    int rc = uring_open(&uring, &ring, NULL);
    if (rc < 0) {
        return rc;
    }
    memset(&area, 0, sizeof(area));
    area.uring = &uring;
    trial.buffer_size = buffer_size;
    rc = zcrx_region_map(&area, ZCRX_ENTRIES_MIN);
    if (rc == 0) {
        rc = zcrx_register_once(&area, &trial, false);
        uring_close(&uring); /* Ends the registration, and with it the kernel's use of the region. */
        munmap(area.region, area.region_size);
        return rc;
    }
    uring_close(&uring);
    return rc;
}

uint32_t zcrx_area_accepted(const struct zcrx_area_options *options)
{
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
    for (uint32_t size = options->buffer_size / 2; size > page; size /= 2) {
        if (zcrx_try(options, size) == 0) {
            return size;
        }
    }
    return zcrx_try(options, 0) == 0 ? 0 : ZCRX_SIZE_NONE;
}

int zcrx_area_open(struct zcrx_area *area, const struct zcrx_area_options *options, struct err *err)
{
    memset(area, 0, sizeof(*area));
    list_init(&area->late);
    area->uring = options->uring;
    area->addr = options->addr;
    area->len = options->len;
    area->no_device = options->no_device;
    uint32_t unit = options->buffer_size != 0 ? options->buffer_size : (uint32_t)sysconf(_SC_PAGESIZE);
    int rc = zcrx_buffers_open(area, options->len / unit);
    if (rc < 0) {
        return err_set(err, rc,
                       "cannot keep the books of %llu receive buffers (%s); choose another rx_area_size or "
                       "rx_buffer_size",
                       (unsigned long long)(options->len / unit), err_text(rc));
    }
    rc = zcrx_region_map(area, zcrx_entry_count(options->len, unit));
    if (rc < 0) {
        free(area->buffers);
        return err_set(err, rc, "no memory for the refill ring");
    }
    rc = zcrx_register_once(area, options, true);
    if (rc == -EINVAL) {
        rc = zcrx_register_once(area, options,
                                false); /* Kernels before the statistics refuse a non-zero field. */
    }
    if (rc < 0) {
        uint32_t accepted = zcrx_is_about_size(rc, options) ? zcrx_area_accepted(options) : ZCRX_SIZE_NONE;
        munmap(area->region, area->region_size);
        free(area->buffers);
        return zcrx_area_refused(rc, accepted, options, err);
    }
    CHECK(area->buffer_size >= unit); /* What is granted is what was asked for; larger ones are fewer. */
    area->buffer_count = (uint32_t)(area->len / area->buffer_size);
    return 0;
}

void zcrx_area_close(struct zcrx_area *area)
{
    for (uint32_t i = 0; i < area->buffer_count; i++) {
        CHECK(area->buffers[i].refs == 0);
    }
    if (area->returns != NULL) {
        munmap(area->returns, area->region_size);
        area->returns = NULL;
        area->buffers = NULL;
        return;
    }
    free(area->buffers);
    area->buffers = NULL;
    /* The refill region stays mapped: the kernel reads it until the ring is closed. It is a few pages once per process
     * life of a listener, and unmapping early would turn a late read into a fault. */
}

/* ---- borrowing ------------------------------------------------------------------------------------------------- */

void zcrx_area_lend(struct zcrx_area *area, struct zcrx_lender *lender)
{
    struct zcrx_ctrl ctrl = {.zcrx_id = area->id, .op = ZCRX_CTRL_EXPORT};
    int rc = io_uring_register_zcrx_ctrl(&area->uring->ring, &ctrl);
    struct mpsc *inbox = lender->inbox;
    *lender = (struct zcrx_lender){.fd = rc < 0 ? -1 : (int)ctrl.zc_export.zcrx_fd,
                                   .addr = area->addr,
                                   .len = area->len,
                                   .token = area->token,
                                   .buffer_size = area->buffer_size,
                                   .buffer_count = area->buffer_count,
                                   .inbox = inbox};
}

void zcrx_area_lend_end(struct zcrx_lender *lender)
{
    if (lender->fd >= 0) {
        close(lender->fd);
    }
    lender->fd = -1;
}

int zcrx_area_borrow(struct zcrx_area *area, const struct zcrx_lender *lender, struct uring *uring,
                     uint32_t return_kind)
{
    struct io_uring_zcrx_ifq_reg reg = {.if_idx = (uint32_t)lender->fd, .flags = ZCRX_REG_IMPORT};
    memset(area, 0, sizeof(*area));
    list_init(&area->late);
    if (lender->fd < 0) {
        return -EOPNOTSUPP;
    }
    uint64_t returns_size = bytes_round_up(lender->buffer_count * sizeof(struct zcrx_return), 64);
    area->region_size = returns_size + lender->buffer_count * sizeof(struct zcrx_buffer);
    uint8_t *tables =
        mmap(NULL, area->region_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tables == MAP_FAILED) {
        return -errno;
    }
    int rc = lender->register_fn != NULL ? lender->register_fn(&uring->ring, &reg)
                                         : io_uring_register_ifq(&uring->ring, &reg);
    if (rc < 0) {
        munmap(tables, area->region_size);
        return rc;
    }
    area->returns = (struct zcrx_return *)tables;
    area->buffers = (struct zcrx_buffer *)(tables + returns_size);
    area->uring = uring;
    area->id = reg.zcrx_id;
    area->addr = lender->addr;
    area->len = lender->len;
    area->token = lender->token;
    area->buffer_size = lender->buffer_size;
    area->buffer_count = lender->buffer_count;
    area->lender_inbox = lender->inbox;
    for (uint32_t i = 0; i < area->buffer_count; i++) {
        list_init(&area->buffers[i].late_node);
        area->returns[i].kind = return_kind;
        area->returns[i].index = i;
    }
    return 0;
}

bool zcrx_area_is_borrowed(const struct zcrx_area *area)
{
    return area->lender_inbox != NULL;
}

/* Posts what a borrowed buffer is owed; false while its last message is still under way. */
static bool zcrx_post(struct zcrx_area *area, uint32_t index)
{
    struct zcrx_buffer *buffer = &area->buffers[index];
    struct zcrx_return *message = &area->returns[index];
    if (atomic_load_explicit(&message->count, memory_order_acquire) != 0) {
        return false;
    }
    atomic_store_explicit(&message->count, buffer->owed, memory_order_relaxed); /* The push releases it. */
    area->refills += buffer->owed;
    buffer->owed = 0;
    mpsc_push(area->lender_inbox, &message->node);
    return true;
}

/* ---- what a refusal means -------------------------------------------------------------------------------------- */

struct zcrx_refusal {
    int rc;
    const char *text;
};

/* Conditions as in Linux 7.3's io_uring/zcrx.c, net/core/netdev_rx_queue.c and the drivers. The kernel gives no text. */
static const struct zcrx_refusal zcrx_refusals[] = {
    {-EPERM, "zero-copy receive needs CAP_NET_ADMIN in the initial user namespace (root of a container with "
             "its own user "
             "namespace is not enough)"},
    {-ENODEV, "the interface does not exist in this network namespace"},
    {-ENETDOWN, "the interface is down; bring it up (ip link set dev NAME up)"},
    {-EAGAIN, "the interface is down (gve says so by EAGAIN); bring it up"},
    {-EEXIST, "an XDP program is attached to the interface, or another process holds zero-copy receive or "
              "devmem on this "
              "queue; detach the program or choose another queue"},
    {-EBUSY,
     "an AF_XDP socket owns the queue, or the queue is leased to a virtual device; zcrx and AF_XDP zero-copy "
     "cannot share a NIC"},
    {-ENODATA,
     "the driver restarted the queue but did not use our memory for it: header split is not live; set "
     "ethtool -K NAME rx-gro-hw on, then ethtool -G NAME tcp-data-split on"},
    {-ENOMEM,
     "memory for the area was refused; raise RLIMIT_MEMLOCK (ulimit -l, systemd LimitMEMLOCK=) or give "
     "CAP_IPC_LOCK"},
    {-ERANGE, "out of range: the queue does not exist, or the area is not contiguous in the buffer size (set "
              "hugepages: 2MiB)"},
    {-EFAULT, "the area cannot be pinned: it must be writable anonymous or huge page memory"},
    {-EOPNOTSUPP, "the driver does not offer zero-copy receive on this queue (bnxt, mlx5 from ConnectX-7, "
                  "gve DQO and fbnic do)"},
    {-EINVAL,
     "the kernel refused the set-up: tcp-data-split must be set explicitly (ethtool -G NAME tcp-data-split "
     "on "
     "hds-thresh 0), the buffer size must be a power of two that the NIC takes, and the kernel must have "
     "CONFIG_IO_URING_ZCRX (Linux 6.15; 7.1 for device-less)"},
};

/* Who refused a size, from the error, what the memory is and what else was accepted. False: the size was not the reason. */
static bool zcrx_size_refused(int rc, uint32_t accepted, const struct zcrx_area_options *options,
                              char text[ZCRX_TEXT_MAX])
{
    char unit[BYTES_SIZE_TEXT_MAX];
    char size[BYTES_SIZE_TEXT_MAX];
    if (rc == -ERANGE && options->page_size != 0 && options->buffer_size > options->page_size) {
        snprintf(text, ZCRX_TEXT_MAX,
                 "huge pages: the area's memory is contiguous in units of %s only; set hugepages: 2MiB, or "
                 "rx_buffer_size: 0",
                 bytes_format_size(options->page_size, unit));
    } else if (rc == -ERANGE && options->buffer_size != 0 &&
               (options->len % options->buffer_size != 0 ||
                (uintptr_t)options->addr % options->buffer_size != 0)) {
        snprintf(text, ZCRX_TEXT_MAX,
                 "alignment: the area's address and length must be multiples of the buffer size");
    } else if (accepted == 0) {
        snprintf(text, ZCRX_TEXT_MAX,
                 "kernel or driver: only the default size is accepted, rx_buffer_size: 0 (Linux 7.0 takes "
                 "larger ones; of the drivers, gve and fbnic take none, bnxt 32KiB, mlx5 128KiB)");
    } else if (accepted != ZCRX_SIZE_NONE) {
        snprintf(text, ZCRX_TEXT_MAX,
                 "driver: it accepts buffers up to %s; set rx_buffer_size: %s or less, or 0 for its default",
                 bytes_format_size(accepted, size), size);
    } else {
        return false;
    }
    return true;
}

int zcrx_area_refused(int rc, uint32_t accepted, const struct zcrx_area_options *options, struct err *err)
{
    char size[BYTES_SIZE_TEXT_MAX];
    char text[ZCRX_TEXT_MAX];
    const char *where = options->interface != NULL ? options->interface : "no device";
    bytes_format_size(options->buffer_size, size);
    const char *why = zcrx_size_refused(rc, accepted, options, text) ? text : err_text(rc);
    for (size_t i = 0; why != text && i < ARRAY_COUNT(zcrx_refusals); i++) {
        if (zcrx_refusals[i].rc == rc) {
            why = zcrx_refusals[i].text;
            break;
        }
    }
    return err_set(err, rc, "zero-copy receive on %s queue %u with buffers of %s: %s", where, options->queue,
                   size, why);
}

/* ---- references and refills ------------------------------------------------------------------------------------ */

uint32_t zcrx_area_take(struct zcrx_area *area, uint64_t offset, uint32_t len, uint8_t **addr)
{
    offset &= ~IORING_ZCRX_AREA_MASK;
    CHECK(offset < area->len);
    CHECK(len <= area->len - offset);
    uint32_t index = (uint32_t)(offset / area->buffer_size);
    CHECK(index < area->buffer_count);
    struct zcrx_buffer *buffer = &area->buffers[index];
    if (buffer->refs == 0) {
        area->held_count++;
    }
    buffer->refs++;
    buffer->owed++;
    *addr = area->addr + offset;
    return index;
}

void zcrx_area_retain(struct zcrx_area *area, uint32_t index)
{
    CHECK(index < area->buffer_count);
    CHECK(area->buffers[index].refs > 0);
    area->buffers[index].refs++;
}

/* Writes the entries a buffer is owed, as far as they fit; true when none is left. */
static bool zcrx_refill(struct zcrx_area *area, uint32_t index)
{
    struct zcrx_buffer *buffer = &area->buffers[index];
    if (zcrx_area_is_borrowed(area)) {
        return zcrx_post(area, index);
    }
    uint32_t head = __atomic_load_n(area->ring_head, __ATOMIC_ACQUIRE);
    uint32_t room = area->entry_count - (area->tail - head);
    CHECK(room <= area->entry_count);
    uint32_t count = buffer->owed < room ? buffer->owed : room;
    for (uint32_t i = 0; i < count; i++) {
        struct io_uring_zcrx_rqe *entry = &area->entries[area->tail++ & (area->entry_count - 1)];
        entry->off = (uint64_t)index * area->buffer_size | area->token;
        entry->len = area->buffer_size;
        entry->__pad = 0; /* Anything else makes the kernel skip the entry without a word. */
    }
    __atomic_store_n(area->ring_tail, area->tail, __ATOMIC_RELEASE);
    buffer->owed -= count;
    area->refills += count;
    return buffer->owed == 0;
}

/* Nobody on this thread holds the buffer any more: pays what it is owed, now or when there is room. */
static void zcrx_pay(struct zcrx_area *area, uint32_t index)
{
    struct zcrx_buffer *buffer = &area->buffers[index];
    if (list_is_linked(&buffer->late_node)) {
        return; /* It waits for room already; its new debt goes with the old. */
    }
    if (!list_is_empty(&area->late) || !zcrx_refill(area, index)) {
        area->refill_full++;
        list_append(&area->late, &buffer->late_node);
    }
}

void zcrx_area_returned(struct zcrx_area *area, struct zcrx_return *message)
{
    uint32_t index = message->index;
    CHECK(index < area->buffer_count);
    struct zcrx_buffer *buffer = &area->buffers[index];
    buffer->owed += atomic_load_explicit(&message->count, memory_order_relaxed);
    atomic_store_explicit(&message->count, 0, memory_order_release);
    if (buffer->refs == 0) {
        zcrx_pay(area, index); /* Otherwise the last release here pays it with its own. */
    }
}

bool zcrx_area_release(struct zcrx_area *area, uint32_t index)
{
    CHECK(index < area->buffer_count);
    struct zcrx_buffer *buffer = &area->buffers[index];
    CHECK(buffer->refs > 0);
    buffer->refs--;
    if (buffer->refs > 0) {
        return false;
    }
    area->held_count--;
    zcrx_pay(area, index);
    return true;
}

void zcrx_area_refill_late(struct zcrx_area *area)
{
    LIST_FOR_EACH_SAFE(node, &area->late)
    {
        struct zcrx_buffer *buffer = CONTAINER_OF(node, struct zcrx_buffer, late_node);
        if (buffer->refs > 0) {
            list_remove(node); /* Taken again meanwhile: the next last release pays all. */
            continue;
        }
        if (!zcrx_refill(area, (uint32_t)(buffer - area->buffers))) {
            return;
        }
        list_remove(node);
    }
}

int zcrx_area_flush(struct zcrx_area *area)
{
    struct zcrx_ctrl ctrl = {.zcrx_id = area->id, .op = ZCRX_CTRL_FLUSH_RQ};
    area->flushes++;
    return io_uring_register_zcrx_ctrl(&area->uring->ring, &ctrl);
}

void zcrx_area_exhausted_arm(struct zcrx_area *area)
{
    /* The event's number follows op and reserved words; it is 0. */
    struct zcrx_ctrl ctrl = {.zcrx_id = area->id, .op = ZCRX_CONTROL_ARM_EVENT};
    (void)io_uring_register_zcrx_ctrl(&area->uring->ring, &ctrl); /* -EINVAL: it is armed already. */
}

uint64_t zcrx_area_copied_bytes(const struct zcrx_area *area)
{
    return area->kernel_stats != NULL ? __atomic_load_n(&area->kernel_stats[1], __ATOMIC_RELAXED) : 0;
}
