/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share: what answers of one worker take turns with: read buffers, decompression streams, blocks of text, tables. It owns the queues
 * of those that wait and of those that hold one while a peer is to read (or, with a table, to send). It must not touch what is
 * held: an operation takes and gives back by itself.
 *
 * Whoever waits gets what comes free in the order of asking (who waits for a device is passed over), and nobody keeps it for a peer that does not move while others
 * wait: after SHARE_TURN_NS the sends are recalled (rx_send_recall), and the operation begins again where they stopped once TCP
 * takes bytes. What cannot be begun again, or not on this backend, is reset after SHARE_STUCK_NS.
 *
 *   share_wait -> ops->resume ... share_hold -> (moves: share_hold again) -> share_release
 *                                     `-- others wait and the peer does not move --> ops->cut ... ops->room
 */
#ifndef SERVER_SHARE_H
#define SERVER_SHARE_H

#include <stdint.h>

#include "base/clock.h"
#include "base/list.h"

#define SHARE_TURN_NS (20 * NS_PER_MS)
#define SHARE_STUCK_NS NS_PER_S
#define SHARE_RECALLS 64U /* per kind and turn of the worker */

struct exchange;
struct worker;

enum share_kind { SHARE_READ, SHARE_STREAM, SHARE_BLOCK, SHARE_TABLE, SHARE_COUNT };

struct share {
    struct list waiters; /* exchanges, longest first */
    struct list holders; /* exchanges whose sends can be recalled, the one that moved longest ago first */
    struct list stuck;   /* the same for those that can only be reset */
};

void shares_init(struct worker *worker);

/* ops->resume is called when one may be free. Who is being resumed keeps its place. */
void share_wait(struct exchange *x, enum share_kind kind);
/* Does somebody wait? Then who comes now must wait, too. */
bool share_is_wanted(const struct exchange *x, enum share_kind kind);
/* Its peer has to move before x gives one back; call it again whenever the peer has moved. */
void share_hold(struct exchange *x, enum share_kind kind);
/* It was given back, or the peer is not who is waited for. Idempotent. */
void share_release(struct exchange *x);

/* Lets those who wait try again, as far as there is something. */
void shares_resume(struct worker *worker);
/* Recalls and resets, see above; and refuses who would wait for an index that does not answer. */
void shares_turn(struct worker *worker);
uint64_t shares_deadline(const struct worker *worker);

#endif
