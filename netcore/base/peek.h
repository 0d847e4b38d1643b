/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peek: how our own code reads payload that lies in a receive area. Everything that looks at such bytes with the CPU
 * (heads, checksums, the ragged pieces that are copied) goes through here.
 *
 * In an ordinary build this is a plain pointer. Built with PENSTOCK_PROTECT_AREA it is a proof: the arena is mapped twice,
 * peek_protect makes the receive area PROT_NONE in the mapping everybody uses once it is registered (device and kernel use
 * pinned pages), reads through here go to the other, read-only mapping, and any other touch of payload by the CPU faults.
 */
#ifndef BASE_PEEK_H
#define BASE_PEEK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define PEEK_MAX 65536U /* bytes that peek_at shows at once */

#ifdef PENSTOCK_PROTECT_AREA

/* Maps the arena; as mmap of anonymous memory with these flags. */
void *peek_map(uint64_t size, int flags);
/* From now on the CPU may not touch [addr, addr + len), whole pages of the size in force. */
void peek_protect(void *addr, uint64_t len);
/* Where the len bytes at addr may be read. len <= PEEK_MAX. */
const uint8_t *peek_at(const void *addr, uint32_t len);
void peek_copy(void *to, const void *from, uint64_t len);

#else

static inline void *peek_map(uint64_t size, int flags)
{
    return mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static inline void peek_protect(void *addr, uint64_t len)
{
    (void)addr; /* Only the proof build protects. */
    (void)len;
}

static inline const uint8_t *peek_at(const void *addr, uint32_t len)
{
    (void)len; /* Only the proof build has a window to fill. */
    return addr;
}

static inline void peek_copy(void *to, const void *from, uint64_t len)
{
    memcpy(to, from, len);
}

#endif
#endif
