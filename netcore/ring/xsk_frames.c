/* SPDX-License-Identifier: Apache-2.0 */
/* xsk_frames: who has each frame of a UMEM. See the header. */
#include "ring/xsk_frames.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

int xsk_frames_open(struct xsk_frames *frames, uint32_t count)
{
    memset(frames, 0, sizeof(*frames));
    CHECK(count > 0);
    uint32_t *stack = calloc(count, sizeof(*stack));
    uint8_t *states = calloc(count, sizeof(*states));
    if (stack == NULL || states == NULL) {
        free(stack);
        free(states);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        stack[i] = count - 1 - i; /* The lowest is taken first. */
    }
    frames->count = count;
    frames->counts[XSK_FRAME_FREE] = count;
    frames->stack = stack;
    frames->states = states;
    return 0;
}

void xsk_frames_close(struct xsk_frames *frames)
{
    free(frames->stack);
    free(frames->states);
    memset(frames, 0, sizeof(*frames));
}

bool xsk_frames_take(struct xsk_frames *frames, enum xsk_frame_state to, uint32_t *frame)
{
    if (frames->counts[XSK_FRAME_FREE] == 0) {
        return false;
    }
    uint32_t index = frames->stack[frames->counts[XSK_FRAME_FREE] - 1];
    xsk_frames_move(frames, index, XSK_FRAME_FREE, to);
    *frame = index;
    return true;
}

bool xsk_frames_move_if(struct xsk_frames *frames, uint64_t frame, enum xsk_frame_state from,
                        enum xsk_frame_state to)
{
    if (frame >= frames->count || frames->states[frame] != from) {
        return false;
    }
    frames->states[frame] = (uint8_t)to;
    frames->counts[from]--;
    if (to == XSK_FRAME_FREE) {
        frames->stack[frames->counts[XSK_FRAME_FREE]] = (uint32_t)frame;
    }
    frames->counts[to]++;
    return true;
}

void xsk_frames_move(struct xsk_frames *frames, uint32_t frame, enum xsk_frame_state from,
                     enum xsk_frame_state to)
{
    bool was_there = xsk_frames_move_if(frames, frame, from, to);
    CHECK(was_there);
}

uint32_t xsk_frames_reclaim(struct xsk_frames *frames, enum xsk_frame_state from)
{
    uint32_t count = frames->counts[from];
    CHECK(from == XSK_FRAME_FILL || from == XSK_FRAME_SENT);
    for (uint32_t i = 0; i < frames->count && frames->counts[from] > 0; i++) {
        (void)xsk_frames_move_if(frames, i, from, XSK_FRAME_FREE); /* false: it is in another state */
    }
    CHECK(frames->counts[from] == 0);
    return count;
}

void xsk_frames_check(const struct xsk_frames *frames)
{
    uint32_t counts[XSK_FRAME_STATES] = {0};
    for (uint32_t i = 0; i < frames->count; i++) {
        CHECK(frames->states[i] < XSK_FRAME_STATES);
        counts[frames->states[i]]++;
    }
    for (uint32_t i = 0; i < frames->counts[XSK_FRAME_FREE]; i++) {
        CHECK(frames->states[frames->stack[i]] == XSK_FRAME_FREE);
    }
    CHECK(memcmp(counts, frames->counts, sizeof(counts)) == 0);
}
