/* SPDX-License-Identifier: Apache-2.0 */
/* rx_xdp_gather: see the header. A write never overtakes a read: what was written before is at most what was read before, and a driver
 * leaves headroom in front of the bytes of each buffer. */
#include "rx/rx_xdp_gather.h"

#include <string.h>

#include "ring/xsk.h"

uint32_t xdp_gather(struct tcp_part *parts, uint32_t count, uint8_t *area, uint64_t *moved)
{
    uint32_t to = 1;
    uint32_t used = 0;
    for (uint32_t from = 1; from < count; from++) {
        const uint8_t *source = parts[from].addr;
        uint32_t left = parts[from].len;
        *moved += left;
        while (left > 0) { /* twice at most: a part is no longer than a buffer */
            uint32_t piece = left < XSK_CHUNK_DEFAULT - used ? left : XSK_CHUNK_DEFAULT - used;
            uint8_t *place = area + (uint64_t)parts[to].token * XSK_CHUNK_DEFAULT;
            memmove(place + used, source, piece);
            source += piece;
            left -= piece;
            used += piece;
            parts[to].addr = place;
            parts[to].len = used;
            if (used == XSK_CHUNK_DEFAULT) {
                to++;
                used = 0;
            }
        }
    }
    return used > 0 ? to + 1 : to;
}
