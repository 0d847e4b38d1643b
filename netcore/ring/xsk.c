/* SPDX-License-Identifier: Apache-2.0 */
/* xsk: an AF_XDP socket and its frames. See the header. */
#include "ring/xsk.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"

#define XDP_HEADROOM 256U /* XDP_PACKET_HEADROOM: what XDP itself leaves before a packet */
#define HEADERS_USUAL (14U + 20U + 32U)
#define RING_MAX 4096U
#define UNKNOWN_MAX 1024U
#define RETRY_MS 20U

/* Newer than the headers of Debian 12. */
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

_Static_assert((XDP_HEADROOM + XSK_HEADROOM + HEADERS_USUAL) % 4 == 0, "payload is dword aligned");

/* ---- pure ------------------------------------------------------------------------------------------------------- */

const char *xsk_mode_text(enum xsk_mode mode)
{
    static const char *const texts[] = {"automatic", "native XDP with zero-copy", "native XDP with one copy",
                                        "generic XDP, which copies"};
    CHECK((size_t)mode < ARRAY_COUNT(texts));
    return texts[mode];
}

struct xsk_refusal {
    int rc;
    const char *text;
};

/* Conditions as in Linux's net/xdp/{xsk,xdp_umem,xsk_buff_pool}.c and the drivers. The kernel gives no text. */
static const struct xsk_refusal xsk_refusals[] = {
    {-EPERM, "an AF_XDP socket needs CAP_NET_RAW"},
    {-EAFNOSUPPORT, "the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)"},
    {-ENOBUFS, "the frames cannot be locked; raise RLIMIT_MEMLOCK (ulimit -l, systemd LimitMEMLOCK=) or give "
               "CAP_IPC_LOCK"},
    {-ENOMEM, "no memory for frames or rings; on ixgbe also more than 128 possible CPUs: boot with "
              "nr_cpus=128"},
    {-ENODEV, "the interface does not exist in this network namespace"},
    {-ENETDOWN, "the interface is down; bring it up (ip link set dev NAME up)"},
    {-EBUSY,
     "the queue has an AF_XDP socket already, or a queue of the interface belongs to zero-copy receive "
     "of io_uring or devmem; `ss --xdp` lists the owners"},
    {-EOPNOTSUPP, "the driver has no zero-copy AF_XDP on this queue, or none for frames of several buffers "
                  "(ixgbe); an out-of-tree driver may lack what the kernel's own has (ethtool -i NAME)"},
    {-EINVAL, "the queue does not exist, the MTU does not fit a frame, or the device cannot reach our memory "
              "(virtio-net wants iommu_platform=on); no XDP program may be attached either"},
};

int xsk_refused(int rc, const struct xsk_options *options, struct err *err)
{
    const char *text = err_text(rc);
    for (size_t i = 0; i < ARRAY_COUNT(xsk_refusals); i++) {
        if (xsk_refusals[i].rc == rc) {
            text = xsk_refusals[i].text;
        }
    }
    return err_set(err, rc, "AF_XDP on %s queue %u: %s", options->interface, options->queue, text);
}

enum xsk_trouble xsk_wakeup_trouble(int rc)
{
    switch (rc) {
    case 0:
        return XSK_FINE;
    case -EAGAIN:
    case -EBUSY:
    case -ENOBUFS: /* generic mode: no memory for a packet, or its budget is used up */
    case -EINTR:
        return XSK_LATER;
    case -ENETDOWN:
        return XSK_PAUSED;
    default: /* -ENXIO: not bound any more; -EINVAL: ixgbe has lost the program; -EBADF */
        return XSK_LOST;
    }
}

static uint32_t power_of_two_up(uint32_t value)
{
    uint32_t power = 1;
    while (power < value && power < 1U << 30) {
        power *= 2;
    }
    return power;
}

bool xsk_sizes(uint32_t frames, uint32_t nic_ring, uint32_t tx_frames, struct xsk_sizes *sizes)
{
    if (tx_frames == 0) {
        tx_frames = frames / 16;
        tx_frames = tx_frames > 512 ? 512 : tx_frames < 4 ? 4 : tx_frames;
    }
    if (frames <= tx_frames || frames - tx_frames < nic_ring) {
        return false;
    }
    /* A driver that does not say how large its ring is may deliver bursts: a quarter of the frames, within reason. */
    uint32_t burst = nic_ring > 0 ? nic_ring : frames / 4 > UNKNOWN_MAX ? UNKNOWN_MAX : frames / 4;
    uint32_t rx = power_of_two_up(burst > 64 ? burst : 64);
    rx = rx > RING_MAX ? RING_MAX : rx;
    /* An RX ring larger than what can be in it costs memory only; a smaller one drops. */
    sizes->rx = frames < 4 * rx ? rx : power_of_two_up(2 * rx > RING_MAX ? RING_MAX : 2 * rx);
    sizes->fill = power_of_two_up(nic_ring + sizes->rx);
    sizes->tx = power_of_two_up(tx_frames);
    sizes->tx_frames = tx_frames;
    return true;
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static int umem_open(struct xsk *xsk, const struct xsk_options *options, const struct xsk_sizes *sizes)
{
    if (options->base != NULL) {
        xsk->umem = options->base->umem;
        return 0; /* Its rings come with the socket. */
    }
    struct xsk_umem_config config = {.fill_size = sizes->fill,
                                     .comp_size = sizes->tx,
                                     .frame_size = xsk->chunk_size,
                                     .frame_headroom = XSK_HEADROOM};
    int rc = xsk_umem__create(&xsk->umem, options->area, options->area_size, &xsk->fill, &xsk->completion,
                              &config);
    return rc < 0 ? rc : 0;
}

static int bind_once(struct xsk *xsk, const struct xsk_options *options, const struct xsk_sizes *sizes,
                     enum xsk_mode mode)
{
    uint32_t flags = XDP_USE_NEED_WAKEUP;
    flags |= mode == XSK_MODE_ZERO_COPY ? XDP_ZEROCOPY : XDP_COPY;
    flags |= options->want_multi ? (uint32_t)XDP_USE_SG : 0;
    struct xsk_socket_config config = {.rx_size = sizes->rx,
                                       .tx_size = sizes->tx,
                                       .libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
                                       .bind_flags = (uint16_t)flags};
    if (options->base == NULL) {
        return xsk_socket__create(&xsk->socket, options->interface, options->queue, xsk->umem, &xsk->rx,
                                  &xsk->tx, &config);
    }
    return xsk_socket__create_shared(&xsk->socket, options->interface, options->queue, xsk->umem, &xsk->rx,
                                     &xsk->tx, &xsk->fill, &xsk->completion, &config);
}

/* Teardown of a socket that had the queue before is asynchronous, so that busy is asked again. Start-up only. */
static int bind_patiently(struct xsk *xsk, const struct xsk_options *options, const struct xsk_sizes *sizes,
                          enum xsk_mode mode)
{
    uint32_t tries_left = options->patience_ms / RETRY_MS;
    int rc = bind_once(xsk, options, sizes, mode);
    while (rc == -EBUSY && tries_left-- > 0) {
        struct timespec pause = {.tv_nsec = (long)(RETRY_MS * NS_PER_MS)};
        nanosleep(&pause, NULL); /* lint: allow: start-up; the kernel gives no event for this */
        rc = bind_once(xsk, options, sizes, mode);
    }
    return rc;
}

static int bind_best(struct xsk *xsk, const struct xsk_options *options, const struct xsk_sizes *sizes,
                     struct err *err)
{
    bool wants_zero = options->mode == XSK_MODE_ZERO_COPY || options->mode == XSK_MODE_AUTO;
    int rc = -EOPNOTSUPP;
    if (wants_zero && !options->is_generic) {
        rc = bind_patiently(xsk, options, sizes, XSK_MODE_ZERO_COPY);
        if (rc == 0 || rc == -EBUSY) {
            return rc == 0 ? 0 : xsk_refused(rc, options, err);
        }
    }
    if (wants_zero) {
        struct err reason = {""};
        (void)xsk_refused(rc, options, &reason); /* rc is what is passed on. */
        (void)snprintf(xsk->refused, sizeof(xsk->refused), "zero-copy: %.490s",
                       options->is_generic ? "the driver has no native XDP" : reason.text);
    }
    if (options->mode == XSK_MODE_ZERO_COPY) {
        return options->is_generic ? err_set(err, rc,
                                             "AF_XDP on %s queue %u: zero-copy needs native XDP, which "
                                             "the driver does not have",
                                             options->interface, options->queue)
                                   : xsk_refused(rc, options, err);
    }
    rc = bind_patiently(xsk, options, sizes, XSK_MODE_COPY);
    return rc == 0 ? 0 : xsk_refused(rc, options, err);
}

static int mode_read(struct xsk *xsk, const struct xsk_options *options, struct err *err)
{
    struct xdp_options granted = {0};
    socklen_t len = sizeof(granted);
    if (getsockopt(xsk->fd, SOL_XDP, XDP_OPTIONS, &granted, &len) != 0) {
        return err_set(err, -errno, "AF_XDP on %s queue %u: the kernel does not say which mode it chose",
                       options->interface, options->queue);
    }
    xsk->mode = (granted.flags & XDP_OPTIONS_ZEROCOPY) != 0 ? XSK_MODE_ZERO_COPY
                : options->is_generic                       ? XSK_MODE_GENERIC
                                                            : XSK_MODE_COPY;
    return 0;
}

/* Only room in the fill ring, the socket's quota, and frames beyond those kept for sending. Returns how many were added. */
static uint32_t fill(struct xsk *xsk)
{
    uint32_t spare = xsk->pool->counts[XSK_FRAME_FREE];
    uint32_t sending = xsk->pool->counts[XSK_FRAME_OURS] + xsk->pool->counts[XSK_FRAME_SENT];
    uint32_t keep = xsk->tx_frames > sending ? xsk->tx_frames - sending : 0;
    uint32_t want = spare > keep ? spare - keep : 0;
    uint32_t quota = xsk->fill_max > xsk->filled ? xsk->fill_max - xsk->filled : 0;
    want = want < quota ? want : quota;
    uint32_t room = want > 0 ? xsk_prod_nb_free(&xsk->fill, want) : 0;
    uint32_t count = want < room ? want : room;
    uint32_t at;
    if (count == 0 || xsk_ring_prod__reserve(&xsk->fill, count, &at) != count) {
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t frame;
        bool was_free = xsk_frames_take(xsk->pool, XSK_FRAME_FILL, &frame);
        CHECK(was_free);
        xsk_frames_tag(xsk->pool, frame, xsk->place);
        *xsk_ring_prod__fill_addr(&xsk->fill, at + i) = (uint64_t)frame << xsk->chunk_shift;
    }
    xsk_ring_prod__submit(&xsk->fill, count);
    xsk->filled += count;
    return count;
}

static int options_check(struct xsk *xsk, const struct xsk_options *options, struct xsk_sizes *sizes,
                         struct err *err)
{
    memset(xsk, 0, sizeof(*xsk));
    xsk->fd = -1;
    xsk->pool = options->base != NULL ? &options->base->frames : &xsk->frames;
    xsk->area = options->area;
    xsk->chunk_size = options->chunk_size != 0 ? options->chunk_size : XSK_CHUNK_DEFAULT;
    xsk->is_multi = options->want_multi;
    xsk->place = options->place;
    if (xsk->chunk_size != 2048 && xsk->chunk_size != 4096) {
        return err_set(err, -EINVAL, "AF_XDP on %s: frames are 2KiB or 4KiB, not %u", options->interface,
                       xsk->chunk_size);
    }
    CHECK(options->area_size % xsk->chunk_size == 0);
    xsk->chunk_shift = (uint32_t)__builtin_ctz(xsk->chunk_size);
    uint64_t count = options->area_size / xsk->chunk_size;
    if (count > UINT32_MAX || !xsk_sizes((uint32_t)count, options->nic_ring, options->tx_frames, sizes)) {
        return err_set(
            err, -EINVAL,
            "AF_XDP on %s queue %u: %llu frames do not cover the NIC's ring of %u and those for sending; "
            "raise rx_area_size or shrink the ring (ethtool -G %s rx N)",
            options->interface, options->queue, (unsigned long long)count, options->nic_ring,
            options->interface);
    }
    xsk->tx_frames = sizes->tx_frames;
    uint32_t sockets = options->sockets > 0 ? options->sockets : 1;
    xsk->fill_max = ((uint32_t)count - sizes->tx_frames) / sockets;
    if (xsk->fill_max == 0 || xsk->fill_max < options->nic_ring) {
        return err_set(
            err, -EINVAL,
            "AF_XDP on %s queue %u: %llu frames shared by %u queues do not cover NIC rings of %u; raise "
            "rx_area_size or shrink the ring (ethtool -G %s rx N)",
            options->interface, options->queue, (unsigned long long)count, sockets, options->nic_ring,
            options->interface);
    }
    return 0;
}

/* From registered memory to a bound socket. On failure only the frames are left. */
static int bind_all(struct xsk *xsk, const struct xsk_options *options, const struct xsk_sizes *sizes,
                    struct err *err)
{
    int rc = umem_open(xsk, options, sizes);
    if (rc < 0) {
        xsk->umem = NULL;
        return xsk_refused(rc, options, err);
    }
    if (options->base == NULL) {
        (void)fill(xsk); /* before the bind; how many is the ring's affair */
    }
    rc = bind_best(xsk, options, sizes, err);
    if (rc < 0) {
        goto close_umem;
    }
    /* The queue was free, so the kernel is done with the socket that had it before. */
    (void)xsk_frames_reclaim(xsk->pool, xsk->place);
    (void)fill(xsk); /* A shared socket has its ring only now. */
    xsk->fd = xsk_socket__fd(xsk->socket);
    rc = mode_read(xsk, options, err);
    if (rc < 0) {
        goto close_socket;
    }
    return 0;
close_socket:
    xsk_socket__delete(xsk->socket);
close_umem:
    if (options->base == NULL) {
        (void)xsk_umem__delete(xsk->umem); /* It is not in use: no socket is left. */
    }
    xsk->socket = NULL;
    xsk->umem = NULL;
    xsk->fd = -1;
    return rc;
}

int xsk_open(struct xsk *xsk, const struct xsk_options *options, struct err *err)
{
    struct xsk_sizes sizes;
    int rc = options_check(xsk, options, &sizes, err);
    if (rc < 0) {
        return rc;
    }
    if (options->base == NULL) {
        rc = xsk_frames_open(&xsk->frames, (uint32_t)(options->area_size >> xsk->chunk_shift));
        if (rc < 0) {
            return err_set(err, rc, "no memory for the table of frames");
        }
    }
    rc = bind_all(xsk, options, &sizes, err);
    if (rc < 0 && options->base == NULL) {
        xsk_frames_close(&xsk->frames);
    }
    return rc;
}

void xsk_share(struct xsk *xsk, uint32_t sockets)
{
    xsk->fill_max = (xsk->pool->count - xsk->tx_frames) / (sockets > 0 ? sockets : 1);
}

void xsk_drop(struct xsk *xsk)
{
    bool is_base = xsk->pool == &xsk->frames;
    CHECK(xsk->fd >= 0);
    CHECK(xsk->unwritten == 0);
    xsk_socket__delete(xsk->socket);
    xsk->stats.tx_lost += xsk->unsent;
    xsk->filled = xsk->unsent = 0;
    if (is_base) { /* the last */
        int rc = xsk_umem__delete(xsk->umem);
        CHECK(rc == 0);
    }
    (void)xsk_frames_bury(xsk->pool, xsk->place); /* how many is told by the counters */
    xsk->socket = NULL;
    xsk->umem = NULL;
    xsk->fd = -1;
}

int xsk_renew(struct xsk *xsk, const struct xsk_options *options, struct err *err)
{
    struct xsk_sizes sizes;
    bool is_base = xsk->pool == &xsk->frames;
    CHECK(xsk->fd < 0);
    CHECK(is_base == (options->base == NULL));
    bool fits = xsk_sizes(xsk->pool->count, options->nic_ring, options->tx_frames, &sizes);
    if (!fits) {
        return xsk_refused(-EINVAL, options, err);
    }
    memset(&xsk->fill, 0, sizeof(xsk->fill));
    memset(&xsk->completion, 0, sizeof(xsk->completion));
    memset(&xsk->rx, 0, sizeof(xsk->rx));
    memset(&xsk->tx, 0, sizeof(xsk->tx));
    xsk->refused[0] = '\0';
    /* A base's fill ring is filled before the bind, also with what its old socket had: if the bind succeeds, the kernel was done with
     * that, and if not, it has looked into no ring of the new one. */
    (void)(is_base && xsk_frames_reclaim(xsk->pool, xsk->place));
    int rc = bind_all(xsk, options, &sizes, err);
    if (rc == 0) {
        xsk->is_lost = false;
        xsk->progress_ns = 0;
        return 0;
    }
    xsk->filled = 0;
    (void)xsk_frames_bury(xsk->pool, xsk->place);
    if (is_base) {
        xsk_frames_unclaim(xsk->pool, xsk->place);
    }
    return rc;
}

void xsk_close(struct xsk *xsk)
{
    if (xsk->fd >= 0) {
        xsk_drop(xsk);
    }
    if (xsk->pool == &xsk->frames) {
        CHECK(xsk->frames.counts[XSK_FRAME_HELD] == 0);
        CHECK(xsk->frames.counts[XSK_FRAME_OURS] == 0);
        xsk_frames_check(&xsk->frames);
        xsk_frames_close(&xsk->frames);
    }
}

enum xsk_trouble xsk_health(struct xsk *xsk)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(xsk->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0) {
        xsk->is_lost = true; /* The kernel sets it once, when the interface is unregistered. */
    }
    return xsk->is_lost ? XSK_LOST : XSK_FINE;
}

void xsk_wake(struct xsk *xsk)
{
    (void)recvfrom(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL); /* What is wrong shows when sending. */
    if (xsk->unsent > 0) {
        (void)sendto(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
    }
    xsk->stats.wakeups++;
}

/* The microseconds are for callers that block, which we never are; but without any the kernel does not poll at all. */
#define BUSY_MICROSECONDS 20

static int busy_options(int fd, bool is_on, uint32_t frames)
{
    int prefer = is_on ? 1 : 0;
    int microseconds = is_on ? BUSY_MICROSECONDS : 0;
    int budget = (int)frames;
    bool is_set = setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &microseconds, sizeof(microseconds)) == 0 &&
                  setsockopt(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, &prefer, sizeof(prefer)) == 0 &&
                  setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, sizeof(budget)) == 0;
    return is_set ? 0 : -errno;
}

int xsk_busy_set(struct xsk *xsk, bool is_on, uint32_t frames)
{
    int rc = busy_options(xsk->fd, is_on, frames);
    if (rc < 0 && is_on) {
        (void)busy_options(xsk->fd, false, frames); /* What this cannot lower was never raised. */
    }
    return rc;
}

void xsk_busy_poll(struct xsk *xsk)
{
    xsk->stats.busy_polls++;
    (void)recvfrom(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL); /* What is wrong shows when sending. */
}

/* ---- receiving ---------------------------------------------------------------------------------------------------- */

/* A descriptor of the kernel's. False: it names a frame that the kernel does not have, or bytes outside. */
static bool part_take(struct xsk *xsk, const struct xdp_desc *desc, struct xsk_part *part)
{
    uint64_t frame = desc->addr >> xsk->chunk_shift;
    uint32_t offset = (uint32_t)(desc->addr & (xsk->chunk_size - 1));
    if (desc->len > xsk->chunk_size - offset ||
        !xsk_frames_move_if(xsk->pool, frame, XSK_FRAME_FILL, XSK_FRAME_HELD)) {
        xsk->stats.wrong++;
        xsk->is_lost = true;
        return false;
    }
    xsk->filled -= xsk->filled > 0;
    *part = (struct xsk_part){.addr = xsk->area + desc->addr,
                              .len = desc->len,
                              .frame = (uint32_t)frame,
                              .more = (desc->options & XDP_PKT_CONTD) != 0};
    return true;
}

uint32_t xsk_receive(struct xsk *xsk, struct xsk_part *parts, uint32_t max)
{
    uint32_t at;
    uint32_t count = xsk_ring_cons__peek(&xsk->rx, max, &at);
    uint32_t whole = 0; /* parts up to the end of the last whole packet */
    for (uint32_t i = 0; i < count; i++) {
        whole = (xsk_ring_cons__rx_desc(&xsk->rx, at + i)->options & XDP_PKT_CONTD) == 0 ? i + 1 : whole;
    }
    if (whole == 0) {
        whole = count;
    }
    xsk_ring_cons__cancel(&xsk->rx, count - whole);
    uint32_t taken = 0;
    for (uint32_t i = 0; i < whole; i++) {
        if (part_take(xsk, xsk_ring_cons__rx_desc(&xsk->rx, at + i), &parts[taken])) {
            xsk->stats.received += !parts[taken].more;
            xsk->stats.received_bytes += parts[taken].len;
            taken++;
        }
    }
    if (whole > 0) {
        xsk_ring_cons__release(&xsk->rx, whole);
    }
    return taken;
}

void xsk_give(struct xsk *xsk, uint32_t frame)
{
    xsk_frames_move(xsk->pool, frame, XSK_FRAME_HELD, XSK_FRAME_FREE);
}

uint8_t *xsk_hold(struct xsk *xsk, uint32_t *frame)
{
    return xsk_frames_take(xsk->pool, XSK_FRAME_HELD, frame)
               ? xsk->area + ((uint64_t)*frame << xsk->chunk_shift)
               : NULL;
}

void xsk_refill(struct xsk *xsk)
{
    (void)fill(xsk); /* The driver may also ask for a wake-up when nothing could be added. */
    if (xsk_ring_prod__needs_wakeup(&xsk->fill)) {
        xsk->stats.wakeups++;
        /* Reads nothing: AF_XDP's way to say that there are frames again. What is wrong shows when sending. */
        (void)recvfrom(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
    }
}

/* ---- sending ------------------------------------------------------------------------------------------------------ */

uint8_t *xsk_send_take(struct xsk *xsk, uint32_t *frame)
{
    /* The frames kept for sending are also the places in the TX ring. */
    if (xsk->unwritten + xsk->unsent >= xsk->tx_frames ||
        !xsk_frames_take(xsk->pool, XSK_FRAME_OURS, frame)) {
        xsk->stats.tx_no_room++;
        return NULL;
    }
    xsk->unwritten++;
    return xsk->area + ((uint64_t)*frame << xsk->chunk_shift);
}

void xsk_send_put(struct xsk *xsk, uint32_t frame, uint32_t len)
{
    CHECK(len > 0);
    CHECK(len <= xsk->chunk_size);
    xsk_frames_tag(xsk->pool, frame, xsk->place);
    xsk_frames_move(xsk->pool, frame, XSK_FRAME_OURS, XSK_FRAME_SENT);
    xsk->unwritten--;
    xsk->unsent++;
    uint32_t at;
    uint32_t got = xsk_ring_prod__reserve(&xsk->tx, 1, &at);
    CHECK(got == 1); /* The ring has a place for each of tx_frames. */
    *xsk_ring_prod__tx_desc(&xsk->tx, at) =
        (struct xdp_desc){.addr = (uint64_t)frame << xsk->chunk_shift, .len = len};
    xsk_ring_prod__submit(&xsk->tx, 1);
    xsk->stats.sent++;
    xsk->stats.sent_bytes += len;
}

void xsk_send_cancel(struct xsk *xsk, uint32_t frame)
{
    xsk_frames_move(xsk->pool, frame, XSK_FRAME_OURS, XSK_FRAME_FREE);
    xsk->unwritten--;
}

static void complete(struct xsk *xsk, uint64_t now_ns)
{
    uint32_t at;
    uint32_t count = xsk_ring_cons__peek(&xsk->completion, xsk->tx_frames, &at);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t frame = *xsk_ring_cons__comp_addr(&xsk->completion, at + i) >> xsk->chunk_shift;
        if (xsk->unsent == 0 || !xsk_frames_move_if(xsk->pool, frame, XSK_FRAME_SENT, XSK_FRAME_FREE)) {
            xsk->stats
                .wrong++; /* More completions than frames sent: a driver that is known to do so is broken. */
            xsk->is_lost = true;
        } else {
            xsk->unsent--;
        }
    }
    if (count > 0) {
        xsk_ring_cons__release(&xsk->completion, count);
        xsk->stats.completed += count;
    }
    if (count > 0 || xsk_unsent(xsk) == 0 || xsk->progress_ns == 0) { /* 0: a new socket */
        xsk->progress_ns = now_ns;
    }
}

/* How far the kernel has come in the TX ring. */
static uint32_t tx_taken(const struct xsk *xsk)
{
    return __atomic_load_n(xsk->tx.consumer, __ATOMIC_ACQUIRE);
}

enum xsk_trouble xsk_flush(struct xsk *xsk, uint64_t now_ns)
{
    complete(xsk, now_ns);
    if (xsk->is_lost) {
        return XSK_LOST;
    }
    if (xsk_unsent(xsk) == 0 || !xsk_ring_prod__needs_wakeup(&xsk->tx)) {
        return XSK_FINE;
    }
    enum xsk_trouble trouble = XSK_LATER;
    uint32_t before, after = tx_taken(xsk);
    /* Where the kernel copies, one call takes 32 frames and says "again" if there are more; a driver that is busy takes none. */
    do {
        before = after;
        xsk->stats.wakeups++;
        int rc = sendto(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 ? -errno : 0;
        trouble = xsk_wakeup_trouble(rc);
        after = tx_taken(xsk);
    } while (trouble == XSK_LATER && after != before); /* Ends: the ring holds a bounded number. */
    xsk->stats.tx_busy += trouble == XSK_LATER;
    xsk->stats.link_resets += trouble == XSK_PAUSED && !xsk->is_paused;
    xsk->is_paused = trouble == XSK_PAUSED;
    xsk->is_lost |= trouble == XSK_LOST;
    complete(xsk, now_ns);
    return xsk->is_lost ? XSK_LOST : trouble;
}

bool xsk_is_stuck(const struct xsk *xsk, uint64_t now_ns, uint64_t deadline_ns)
{
    /* A new socket has not been looked at yet. */
    return xsk_unsent(xsk) > 0 && xsk->progress_ns != 0 && now_ns - xsk->progress_ns > deadline_ns;
}

int xsk_kernel_stats(const struct xsk *xsk, struct xdp_statistics *stats)
{
    socklen_t len = sizeof(*stats);
    return getsockopt(xsk->fd, SOL_XDP, XDP_STATISTICS, stats, &len) == 0 ? 0 : -errno;
}
