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
    uint8_t *queues = calloc(count, sizeof(*queues));
    if (stack == NULL || states == NULL || queues == NULL) {
        free(stack);
        free(states);
        free(queues);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        stack[i] = count - 1 - i; /* The lowest is taken first. */
    }
    frames->count = count;
    frames->counts[XSK_FRAME_FREE] = count;
    frames->stack = stack;
    frames->states = states;
    frames->queues = queues;
    return 0;
}

void xsk_frames_close(struct xsk_frames *frames)
{
    free(frames->stack);
    free(frames->states);
    free(frames->queues);
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

void xsk_frames_tag(struct xsk_frames *frames, uint32_t frame, uint8_t queue)
{
    CHECK(frame < frames->count);
    frames->queues[frame] = queue;
}

/* All frames of `queue` in `from`. Returns how many. */
static uint32_t move_all(struct xsk_frames *frames, uint8_t queue, enum xsk_frame_state from,
                         enum xsk_frame_state to)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < frames->count && frames->counts[from] > 0; i++) {
        count += frames->queues[i] == queue && xsk_frames_move_if(frames, i, from, to);
    }
    return count;
}

uint32_t xsk_frames_bury(struct xsk_frames *frames, uint8_t queue)
{
    return move_all(frames, queue, XSK_FRAME_FILL, XSK_FRAME_GONE) +
           move_all(frames, queue, XSK_FRAME_SENT, XSK_FRAME_GONE);
}

uint32_t xsk_frames_reclaim(struct xsk_frames *frames, uint8_t queue)
{
    return move_all(frames, queue, XSK_FRAME_GONE, XSK_FRAME_FREE);
}

void xsk_frames_unclaim(struct xsk_frames *frames, uint8_t queue)
{
    uint32_t frame;
    while (xsk_frames_take(frames, XSK_FRAME_GONE, &frame)) { /* Ends: one less is free each time. */
        xsk_frames_tag(frames, frame, queue);
    }
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
