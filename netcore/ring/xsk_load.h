/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xsk_load: loads the XDP program (xsk_prog.bpf.c), attaches it to an interface, and tells it of listeners and sockets.
 *
 * One program per interface, whoever listens there; attached by a BPF link, so that the end of the process detaches it, however it
 * ends. Attaching or detaching resets the link of some drivers (ixgbe): open once, at start, before the sockets are bound.
 * Blocks; start-up and shut-down only, except for xsk_program_reasons, _is_attached, _refresh and _reattach: a few system calls, of one
 * thread at a time.
 */
#ifndef RING_XSK_LOAD_H
#define RING_XSK_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ring/xsk_prog.h"

struct xsk_program;

struct xsk_program_options {
    const char *interface;
    uint32_t queues;    /* of the interface; the largest queue that gets a socket is below */
    bool want_multi;    /* frames of several buffers: MTU above a frame. The driver must have it */
    bool allow_generic; /* when the driver has no XDP, attach behind it */
};

int xsk_program_open(const struct xsk_program_options *options, struct xsk_program **out, struct err *err);
/* Only loads it, and lets it go: whether the kernel takes it of this process. */
int xsk_program_try(const struct xsk_program_options *options, struct err *err);
/* Detaches. */
void xsk_program_close(struct xsk_program *program);

bool xsk_program_is_generic(const struct xsk_program *program);
/* The descriptor of the program, for BPF_PROG_TEST_RUN. */
int xsk_program_fd(const struct xsk_program *program);

/* From now on TCP to this address (v4-mapped; one that the host has) and port (host order) is ours, or no longer. Adding twice is
 * -EEXIST. There is no "any" address: whoever listens on it adds each of the host's, because others' traffic may pass here too. */
int xsk_program_listen(struct xsk_program *program, const uint8_t addr[16], uint16_t port);
int xsk_program_unlisten(struct xsk_program *program, const uint8_t addr[16], uint16_t port);

/* Sends frames of a queue to a socket (by its descriptor, bound), or drops them again. */
int xsk_program_socket_set(struct xsk_program *program, uint32_t queue, int fd);
int xsk_program_socket_clear(struct xsk_program *program, uint32_t queue);

/* False when somebody detached the program (bpftool link detach), or its interface has gone. */
bool xsk_program_is_attached(const struct xsk_program *program);
/* Attaches again, with the maps as they are. -ENODEV: there is no such interface (now). */
int xsk_program_reattach(struct xsk_program *program);
/* Tells the program the interface's address as it is now. */
int xsk_program_refresh(struct xsk_program *program);

/* How often each reason was met, over all CPUs. 0 or -errno. */
int xsk_program_reasons(const struct xsk_program *program, uint64_t counts[XSK_PROG_REASONS]);

/* ---- pure ---- */
const char *xsk_prog_reason_text(enum xsk_prog_reason reason);
const char *xsk_prog_reason_help(enum xsk_prog_reason reason);
/* The line of a verifier's log that says what it refuses; empty when there is none. */
#define XSK_SAYS_MAX 200
void xsk_verifier_line(const char *log, char line[XSK_SAYS_MAX]);
/* What a refusal to load (is_attach false) or to attach means; `says`: in the kernel's words, or empty. Returns rc. */
int xsk_program_refused(int rc, bool is_attach, const char *interface, const char *says, struct err *err);

#endif
