/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack: how the slices of an upload become device writes. It owns put->unit, the write that is being collected.
 *
 * A unit is a row of fragments that will lie on the device one behind the other. Fragments are either direct (received bytes where
 * they lie, held by a reference in `pieces`) or staged (copied to memory of ours).
 *
 * Invariants, with A the device's fragment alignment:
 *  1. Every fragment begins at an address that is a multiple of A, at a place in the extent that is a multiple of A.
 *  2. Every fragment but the last has a length that is a multiple of A. An odd last one goes on when the next bytes follow it in
 *     memory (a peer's segments in one buffer do). Otherwise its odd end is copied to staging and the next bytes are staged
 *     behind that until the length is a multiple again.
 *  3. A unit begins at a multiple of the LBA and of A, and is submitted only when its length is a multiple of the LBA.
 *  4. Checksums are taken when a byte is packed, once, in payload order.
 *
 * A byte can go direct when its address and its place agree modulo A. The extent's phase makes that true for its first byte; it
 * stays true as long as received fragments follow each other at the same residue, which TCP payload in aligned buffers does.
 */
#include <errno.h>
#include <string.h>

#include "base/peek.h"
#include "base/bytes.h"
#include "base/check.h"
#include "storage/port_int.h"

enum pack_step { PACK_TOOK, PACK_AGAIN, PACK_NO_ROOM };

static const struct store_device *pack_device(const struct store_put *put)
{
    return &put->port->store->devices[put->extent->desc.device];
}

static uint32_t pack_lba(const struct store_put *put)
{
    return pack_device(put)->dev->info.lba_size;
}

/* Bytes: where a unit may end and the next one begin. An LBA, or more where fragments have to be coarser than that, or the next unit's
 * first one would begin at no multiple of the alignment. */
static uint32_t pack_grain(const struct store_put *put)
{
    uint32_t lba = pack_lba(put);
    uint32_t alignment = pack_device(put)->fragment_alignment;
    return lba > alignment ? lba : alignment;
}

/* Why a row of fragments cannot go as it lies: the peer's segments, the device, or a kernel that refuses what the device takes. */
static enum store_copy_reason pack_staging_reason(const struct store_device *device)
{
    if (store_device_is_coarse(device)) {
        return STORE_COPY_DEVICE;
    }
    return device->fragments_ok ? STORE_COPY_RAGGED : STORE_COPY_KERNEL;
}

/* Waits for something that other uploads hold. */
static void pack_blocked(struct store_put *put)
{
    if (!list_is_linked(&put->blocked_node)) {
        list_append(&put->port->blocked, &put->blocked_node);
    }
}

/* ---- fragments --------------------------------------------------------------------------------------------------- */

static uint32_t pack_fragments_max(const struct store_put *put)
{
    uint32_t max = pack_device(put)->dev->info.fragments_max;
    return (max < WRITE_FRAGMENTS_MAX ? max : WRITE_FRAGMENTS_MAX) - 2; /* padding takes at most two more */
}

static void pack_buf_index_join(struct put_write *unit, int32_t buf_index)
{
    if (unit->buf_index == BUF_INDEX_NONE) {
        unit->buf_index = buf_index;
    } else if (unit->buf_index != buf_index) {
        unit->buf_index = -1; /* a fixed vector takes one registered buffer only */
    }
}

/* Adds a fragment, or lengthens the last one when the bytes follow it in memory. */
static void pack_fragment(struct put_write *unit, uint8_t *addr, uint64_t len, int32_t buf_index)
{
    struct iovec *last = unit->fragment_count > 0 ? &unit->fragments[unit->fragment_count - 1] : NULL;
    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == addr &&
        (unit->buf_index == buf_index || unit->buf_index == -1)) {
        last->iov_len += len;
    } else {
        CHECK(unit->fragment_count < WRITE_FRAGMENTS_MAX);
        unit->fragments[unit->fragment_count++] = (struct iovec){.iov_base = addr, .iov_len = len};
        pack_buf_index_join(unit, buf_index);
    }
    unit->len += len;
}

/* Room for `len` more bytes of small staging, or NULL. The bytes continue the last fragment when that is staged there. */
static uint8_t *pack_slot_room(struct store_put *put, struct put_write *unit, uint32_t len)
{
    uint32_t alignment = pack_device(put)->fragment_alignment;
    uint32_t from =
        unit->is_tail_staged ? unit->slot_used : (uint32_t)bytes_round_up(unit->slot_used, alignment);
    if (from + len > put->port->slot_size) {
        return NULL;
    }
    unit->slot_used = from + len;
    return unit->slot + from;
}

/* Copies payload (or zeros when data is NULL) into the slot. False: the slot is full. */
static bool pack_slot_copy(struct store_put *put, struct put_write *unit, const uint8_t *data, uint32_t len)
{
    uint8_t *room = pack_slot_room(put, unit, len);
    if (room == NULL) {
        return false;
    }
    if (data != NULL) {
        peek_copy(room, data, len);
    } else {
        memset(room, 0, len);
    }
    pack_fragment(unit, room, len, unit->slot_buf_index);
    unit->is_tail_staged = true;
    unit->is_tail_chunk = false;
    return true;
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

static struct put_write *pack_write_take(struct store_put *put)
{
    struct store_port *port = put->port;
    struct put_write *write = pool_take(&port->write_pool);
    if (write == NULL) {
        pack_blocked(put);
        return NULL;
    }
    write->put = put;
    write->extent = put->extent;
    write->len = 0;
    write->unwritten = 0;
    write->buf_index = BUF_INDEX_NONE;
    write->fragment_count = 0;
    write->piece_count = 0;
    write->slot_used = 0;
    write->is_tail_staged = false;
    write->is_tail_chunk = false;
    write->chunk = NULL;
    write->chunk_used = 0;
    write->chunk_count = 0;
    return write;
}

static void pack_limit_set(struct store_put *put, struct put_write *unit, uint64_t at)
{
    uint64_t to_boundary = put->port->options.write_unit - at % put->port->options.write_unit;
    uint64_t to_end = put->extent->reserved - at;
    unit->at = at;
    unit->limit = to_boundary < to_end ? to_boundary : to_end;
}

static bool pack_unit_open(struct store_put *put)
{
    struct put_write *unit = pack_write_take(put);
    if (unit == NULL) {
        return false;
    }
    pack_limit_set(put, unit, put->extent->next_at);
    if (unit->at == 0 && put->extent->desc.phase > 0) {
        bool fits = pack_slot_copy(put, unit, NULL, put->extent->desc.phase);
        CHECK(fits);
    }
    put->unit = unit;
    return true;
}

static bool pack_may_write(struct store_put *put)
{
    if (put->writes_in_flight >= put->port->options.writes_per_put_max) {
        return false; /* The next of its own to end goes on. */
    }
    if (!port_watch_may_write(put->port, put->extent->desc.device)) {
        pack_blocked(put);
        return false;
    }
    return true;
}

static void pack_submit(struct store_put *put)
{
    struct put_write *unit = put->unit;
    CHECK(unit->len > 0);
    CHECK(unit->len % pack_lba(put) == 0);
    memset(&unit->io, 0, sizeof(unit->io));
    unit->io.op = DEV_WRITE;
    unit->io.buf_index = unit->buf_index < 0 ? -1 : unit->buf_index;
    unit->io.offset = put->extent->desc.offset + unit->at;
    unit->io.len = unit->len;
    unit->io.iov = unit->fragments;
    unit->io.iov_count = unit->fragment_count;
    unit->io.user = unit;
    put->extent->next_at = unit->at + unit->len;
    put->extent->writes_in_flight++;
    put->writes_in_flight++;
    put->unit = NULL;
    port_watch_begin(put->port, put->extent->desc.device, WATCH_WRITE, unit->len);
    dev_submit(put->port->write_queues[put->extent->desc.device], &unit->io);
}

static void pack_chunks_give(struct put_write *write)
{
    struct store_port *port = write->put->port;
    for (uint32_t i = 0; i < write->chunk_count; i++) {
        port->chunk_free[port->chunk_free_count++] = write->chunks[i];
    }
    write->chunk_count = 0;
    write->chunk = NULL;
}

void pack_write_end(struct put_write *write)
{
    struct store_port *port = write->put->port;
    for (uint32_t i = 0; i < write->piece_count; i++) {
        slice_release(&write->pieces[i]);
    }
    write->piece_count = 0;
    pack_chunks_give(write);
    pool_give(&port->write_pool, write);
    port->has_freed = true;
}

void pack_drop(struct store_put *put)
{
    if (put->unit != NULL) {
        pack_write_end(put->unit);
        put->unit = NULL;
    }
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */

static bool pack_is_staged(const struct put_write *unit, const uint8_t *addr)
{
    const struct store_port *port = unit->put->port;
    bool in_slot = addr >= unit->slot && addr < unit->slot + port->slot_size;
    bool in_chunks =
        addr >= port->chunk_base && addr < port->chunk_base + (uint64_t)port->chunk_total * port->chunk_size;
    return in_slot || in_chunks;
}

static void pack_piece_add(struct put_write *unit, const struct slice *piece)
{
    struct slice *last = unit->piece_count > 0 ? &unit->pieces[unit->piece_count - 1] : NULL;
    pack_fragment(unit, piece->addr, piece->len, piece->buf_index);
    unit->is_tail_staged = false;
    unit->is_tail_chunk = false;
    if (last != NULL && last->owner == piece->owner && last->token == piece->token &&
        last->addr + last->len == piece->addr) {
        last->len += piece->len; /* one reference holds the memory as well as two */
        slice_release(piece);
        return;
    }
    CHECK(unit->piece_count < WRITE_PIECES_MAX);
    unit->pieces[unit->piece_count++] = *piece;
}

/* Carries received bytes [addr, addr + len) over to `next`, with references of its own. */
static void pack_carry_direct(const struct put_write *unit, struct put_write *next, uint8_t *addr,
                              uint64_t len)
{
    for (uint32_t i = 0; i < unit->piece_count && len > 0; i++) {
        const struct slice *piece = &unit->pieces[i];
        if (addr < piece->addr || addr >= piece->addr + piece->len) {
            continue;
        }
        struct slice part = *piece;
        uint64_t room = (uint64_t)(piece->addr + piece->len - addr);
        part.addr = addr;
        part.len = (uint32_t)(len < room ? len : room);
        slice_retain(&part);
        addr += part.len;
        len -= part.len;
        pack_piece_add(next, &part);
    }
    CHECK(len == 0);
}

/* Moves what lies behind `whole` bytes of the unit to `next`. Less than one grain, so the slot always has room. */
static void pack_carry(struct store_put *put, struct put_write *next, uint64_t whole, bool copy_rest)
{
    struct put_write *unit = put->unit;
    uint64_t place = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < unit->fragment_count; i++) {
        struct iovec *fragment = &unit->fragments[i];
        uint64_t end = place + fragment->iov_len;
        uint64_t skip = whole > place ? whole - place : 0;
        if (end > whole) {
            uint8_t *addr = (uint8_t *)fragment->iov_base + skip;
            uint64_t len = end - place - skip;
            bool is_staged = pack_is_staged(unit, addr);
            if (is_staged || copy_rest) {
                bool fits = pack_slot_copy(put, next, addr, (uint32_t)len);
                CHECK(fits);
                port_count_copy(put->port, STORE_COPY_PRESSURE, is_staged ? 0 : len);
            } else {
                pack_carry_direct(unit, next, addr, len);
            }
        }
        if (skip > 0) {
            fragment->iov_len = skip < fragment->iov_len ? skip : fragment->iov_len;
            kept = i + 1;
        }
        place = end;
    }
    next->unwritten = unit->len - whole;
    unit->unwritten -= next->unwritten;
    unit->fragment_count = kept;
    unit->len = whole;
}

/* The unit holds less than one grain: its received bytes are copied together so that their buffers go back. */
static void pack_copy_out(struct store_put *put, enum store_copy_reason reason)
{
    struct put_write *unit = put->unit;
    uint8_t bytes[EXTENT_BLOCK];
    uint64_t len = 0;
    if (unit->piece_count == 0) {
        return;
    }
    for (uint32_t i = 0; i < unit->fragment_count; i++) {
        const struct iovec *fragment = &unit->fragments[i];
        CHECK(len + fragment->iov_len <= sizeof(bytes));
        peek_copy(bytes + len, fragment->iov_base, fragment->iov_len);
        len += fragment->iov_len;
        port_count_copy(put->port, reason, pack_is_staged(unit, fragment->iov_base) ? 0 : fragment->iov_len);
    }
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        slice_release(&unit->pieces[i]);
    }
    unit->piece_count = 0;
    pack_chunks_give(unit);
    unit->len = 0;
    unit->fragment_count = 0;
    unit->slot_used = 0;
    unit->is_tail_staged = false;
    unit->buf_index = BUF_INDEX_NONE;
    bool fits = pack_slot_copy(put, unit, bytes, (uint32_t)len);
    CHECK(fits);
}

bool pack_cut(struct store_put *put, bool copy_rest)
{
    struct put_write *unit = put->unit;
    if (unit == NULL) {
        return true;
    }
    uint64_t whole = bytes_round_down(unit->len, pack_grain(put));
    if (whole == 0) {
        if (copy_rest) {
            pack_copy_out(put, STORE_COPY_PRESSURE);
        }
        return copy_rest;
    }
    if (!pack_may_write(put)) {
        return false;
    }
    struct put_write *next = NULL;
    if (whole < unit->len) {
        next = pack_write_take(put);
        if (next == NULL) {
            return false;
        }
        pack_limit_set(put, next, unit->at + whole);
        pack_carry(put, next, whole, copy_rest);
    }
    pack_submit(put);
    put->unit = next;
    return true;
}

bool pack_relieve(struct store_put *put)
{
    return put->unit == NULL || put->unit->len < pack_grain(put) || pack_cut(put, false);
}

/* Bytes by which the unit's end is no multiple of the alignment because of a received, not staged, last fragment. */
static uint32_t pack_direct_odd(const struct store_put *put)
{
    const struct put_write *unit = put->unit;
    return unit->is_tail_staged || unit->is_tail_chunk
               ? 0
               : (uint32_t)(unit->len % pack_device(put)->fragment_alignment);
}

/* Copies the odd end of a received last fragment to the slot. */
static void pack_tail_stage(struct store_put *put, uint32_t odd, enum store_copy_reason reason)
{
    struct put_write *unit = put->unit;
    struct iovec *last = &unit->fragments[unit->fragment_count - 1];
    CHECK(unit->fragment_count > 0);
    CHECK(last->iov_len >= odd);
    last->iov_len -= odd;
    unit->len -= odd;
    const uint8_t *from = (const uint8_t *)last->iov_base + last->iov_len;
    unit->fragment_count -= last->iov_len == 0;
    bool fits = pack_slot_copy(put, unit, from, odd);
    CHECK(fits);
    port_count_copy(put->port, reason, odd);
}

/* Zeros up to a whole LBA: behind an odd staged tail in its own memory, then from the page of zeros. */
static void pack_pad(struct store_put *put)
{
    struct put_write *unit = put->unit;
    uint32_t ragged = pack_direct_odd(put);
    if (ragged > 0) {
        pack_tail_stage(put, ragged, STORE_COPY_TAIL);
    }
    uint64_t pad = bytes_round_up(unit->len, pack_lba(put)) - unit->len;
    uint32_t odd = (uint32_t)(pad % pack_device(put)->fragment_alignment);
    if (odd > 0 && unit->is_tail_chunk) {
        CHECK(unit->chunk_used + odd <= put->port->chunk_size);
        memset(unit->chunk + unit->chunk_used, 0, odd);
        pack_fragment(unit, unit->chunk + unit->chunk_used, odd, put->port->options.arena->buf_index);
    } else if (odd > 0) {
        bool fits = pack_slot_copy(put, unit, NULL, odd);
        CHECK(fits);
    }
    if (pad > odd) {
        pack_fragment(unit, put->port->zeros, pad - odd, put->port->options.arena->buf_index);
    }
}

bool pack_close(struct store_put *put)
{
    struct put_write *unit = put->unit;
    if (unit != NULL && unit->len == 0) {
        pack_drop(put);
        unit = NULL;
    }
    if (unit != NULL) {
        if (!pack_may_write(put)) {
            return false;
        }
        pack_pad(put);
        pack_submit(put);
    }
    port_extent_close(put);
    return true;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Accounts for `len` payload bytes just placed in the unit. */
static void pack_count(struct store_put *put, uint64_t len)
{
    put->unit->unwritten += len;
    put->packed += len;
}

static void pack_slice_shrink(struct slice *slice, uint32_t len)
{
    struct slice whole = *slice;
    slice->addr += len;
    slice->len -= len;
    if (slice->len == 0) {
        slice_release(&whole);
    }
}

/* Room for the odd end that pack_close may have to stage is always kept: it must never fail for want of it. */
static bool pack_slot_has_room(const struct store_put *put, uint32_t len)
{
    const struct put_write *unit = put->unit;
    uint32_t alignment = pack_device(put)->fragment_alignment;
    bool has_fragment = unit->is_tail_staged || unit->fragment_count < pack_fragments_max(put);
    return has_fragment &&
           bytes_round_up(unit->slot_used, alignment) + len + alignment <= put->port->slot_size;
}

static enum pack_step pack_small(struct store_put *put, struct slice *slice, uint32_t len,
                                 enum store_copy_reason reason)
{
    struct put_write *unit = put->unit;
    if (!pack_slot_has_room(put, len)) {
        return pack_cut(put, unit->len < pack_grain(put)) ? PACK_AGAIN : PACK_NO_ROOM;
    }
    extent_sum_add(&put->extent->sum, slice->addr, len);
    bool fits = pack_slot_copy(put, unit, slice->addr, len);
    CHECK(fits);
    port_count_copy(put->port, reason, len);
    pack_count(put, len);
    pack_slice_shrink(slice, len);
    return PACK_TOOK;
}

static enum pack_step pack_direct(struct store_put *put, struct slice *slice, uint32_t len)
{
    struct put_write *unit = put->unit;
    if (unit->fragment_count >= pack_fragments_max(put) || unit->piece_count == WRITE_PIECES_MAX) {
        return pack_cut(put, unit->len < pack_grain(put)) ? PACK_AGAIN : PACK_NO_ROOM;
    }
    struct slice piece = *slice;
    extent_sum_add(&put->extent->sum, slice->addr, len);
    if (len < slice->len) {
        slice_cut_head(slice, len, &piece);
    } else {
        slice->len = 0;
    }
    pack_piece_add(unit, &piece);
    pack_count(put, len);
    return PACK_TOOK;
}

static bool pack_chunk_take(struct store_put *put)
{
    struct store_port *port = put->port;
    struct put_write *unit = put->unit;
    if (unit->chunk_count == port->chunks_per_write_max || unit->fragment_count >= pack_fragments_max(put)) {
        return false;
    }
    if (port->chunk_free_count == 0) {
        port_stage_pressure(port);
    }
    if (port->chunk_free_count == 0 || put->unit != unit) {
        return false;
    }
    uint32_t index = port->chunk_free[--port->chunk_free_count];
    unit->chunks[unit->chunk_count++] = index;
    unit->chunk = port->chunk_base + (uint64_t)index * port->chunk_size;
    unit->chunk_used = 0;
    return true;
}

/* Everything is copied: into chunks, one behind the other. */
static enum pack_step pack_staged(struct store_put *put, struct slice *slice, uint32_t len)
{
    struct put_write *unit = put->unit;
    if (unit->chunk == NULL || unit->chunk_used == put->port->chunk_size) {
        if (!pack_chunk_take(put)) {
            if (put->unit == unit && unit->len >= pack_grain(put) && pack_cut(put, false)) {
                return PACK_AGAIN;
            }
            pack_blocked(put);
            return PACK_NO_ROOM;
        }
    }
    uint32_t room = put->port->chunk_size - unit->chunk_used;
    uint32_t step = len < room ? len : room;
    extent_sum_add(&put->extent->sum, slice->addr, step);
    peek_copy(unit->chunk + unit->chunk_used, slice->addr, step);
    pack_fragment(unit, unit->chunk + unit->chunk_used, step, put->port->options.arena->buf_index);
    unit->chunk_used += step;
    unit->is_tail_staged = false; /* the slot's cursor is elsewhere */
    unit->is_tail_chunk = true;
    port_count_copy(put->port, put->staging_reason, step);
    pack_count(put, step);
    pack_slice_shrink(slice, step);
    return PACK_TOOK;
}

/* The bytes do not follow the odd end of the last fragment: that end is staged. */
static enum pack_step pack_tail_end(struct store_put *put, uint32_t odd)
{
    if (!pack_slot_has_room(put, odd)) {
        return pack_cut(put, put->unit->len < pack_grain(put)) ? PACK_AGAIN : PACK_NO_ROOM;
    }
    pack_tail_stage(put, odd, pack_staging_reason(pack_device(put)));
    return PACK_AGAIN;
}

/* Only a few bytes have come so far: they move to where the next fragment wants them, and the extent gets another phase. */
static bool pack_rephase(struct store_put *put, const uint8_t *addr)
{
    struct put_write *unit = put->unit;
    struct put_extent *extent = put->extent;
    uint32_t alignment = pack_device(put)->fragment_alignment;
    uint64_t count = unit->len - extent->desc.phase;
    if (unit->at != 0 || unit->len >= pack_grain(put)) {
        return false;
    }
    pack_copy_out(put, STORE_COPY_HEAD);
    if (unit->fragment_count != 1 || unit->slot_used != unit->len) {
        return false;
    }
    uint32_t phase = (uint32_t)(((uintptr_t)addr - count) % alignment);
    if (phase + count > pack_grain(put)) {
        return false;
    }
    memmove(unit->slot + phase, unit->slot + extent->desc.phase, count);
    memset(unit->slot, 0, phase);
    extent->desc.phase = phase;
    extent->sum.position = phase + count;
    unit->slot_used = (uint32_t)(phase + count);
    unit->len = phase + count;
    unit->fragments[0].iov_len = unit->len;
    return true;
}

/* The next bytes lie at another residue than those before. */
static enum pack_step pack_residue_changed(struct store_put *put, const uint8_t *addr)
{
    if (pack_rephase(put, addr)) {
        return PACK_AGAIN;
    }
    bool may_close = pack_device(put)->fragments_ok && put->residue_changes < PUT_RESIDUE_CHANGES_MAX;
    if (!may_close) {
        put->is_staging = true;
        put->staging_reason = pack_staging_reason(pack_device(put));
        return PACK_AGAIN;
    }
    if (!pack_close(put)) {
        return PACK_NO_ROOM;
    }
    put->residue_changes++;
    return PACK_AGAIN;
}

/* The bytes lie right behind the last fragment, in the same registered buffer. */
static bool pack_follows(const struct put_write *unit, const struct slice *slice)
{
    const struct iovec *last = &unit->fragments[unit->fragment_count - 1];
    return unit->fragment_count > 0 && (const uint8_t *)last->iov_base + last->iov_len == slice->addr &&
           (unit->buf_index == slice->buf_index || unit->buf_index == -1);
}

static enum pack_step pack_some(struct store_put *put, struct slice *slice)
{
    struct put_write *unit = put->unit;
    uint64_t place = unit->at + unit->len;
    uint32_t alignment = pack_device(put)->fragment_alignment;
    uint64_t room = unit->limit - unit->len;
    uint32_t len = slice->len < room ? slice->len : (uint32_t)room;
    uint32_t odd = (uint32_t)(place % alignment);
    bool agrees = ((uintptr_t)slice->addr - place) % alignment == 0;
    uint32_t direct_odd = pack_direct_odd(put);
    if (direct_odd > 0 && !put->is_staging && pack_follows(unit, slice)) {
        return pack_direct(put, slice, len);
    }
    if (direct_odd > 0 && (agrees || put->is_staging)) {
        return pack_tail_end(put, direct_odd);
    }
    if (odd != 0 && !unit->is_tail_chunk && (agrees || put->is_staging)) {
        bool is_head = unit->at == 0 && put->packed < alignment;
        uint32_t gap = alignment - odd;
        return pack_small(put, slice, len < gap ? len : gap,
                          is_head ? STORE_COPY_HEAD : pack_staging_reason(pack_device(put)));
    }
    if (put->is_staging) {
        CHECK(odd == 0 || unit->is_tail_chunk);
        return pack_staged(put, slice, len);
    }
    return agrees ? pack_direct(put, slice, len) : pack_residue_changed(put, slice->addr);
}

/* Makes sure that there is an extent and a unit with room. */
static bool pack_ready(struct store_put *put, const uint8_t *addr)
{
    for (uint32_t turn = 0; turn < 8; turn++) {
        if (put->extent == NULL) {
            int rc = port_extent_open(put, (uintptr_t)addr);
            if (rc == -EAGAIN) {
                pack_blocked(put);
                return false;
            }
            if (rc < 0) {
                put_fail(put, rc);
                return false;
            }
        }
        if (put->unit == NULL && put->extent->next_at == put->extent->reserved && !port_extent_extend(put)) {
            port_extent_close(put);
            continue;
        }
        if (put->unit == NULL && !pack_unit_open(put)) {
            return false;
        }
        if (put->unit->len < put->unit->limit) {
            return true;
        }
        if (!pack_may_write(put)) {
            return false; /* the next of our own writes to end goes on from here */
        }
        pack_submit(put);
    }
    return false;
}

bool pack_slice(struct store_put *put, struct slice *slice)
{
    while (slice->len > 0) {
        if (!pack_ready(put, slice->addr) || pack_some(put, slice) == PACK_NO_ROOM) {
            return false;
        }
    }
    /* A full unit goes out at once; if it cannot, the end of a write takes care of it. */
    if (put->unit != NULL && put->unit->len == put->unit->limit && pack_may_write(put)) {
        pack_submit(put);
    }
    return true;
}
