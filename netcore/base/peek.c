/* SPDX-License-Identifier: Apache-2.0 */
/* peek: the proof build's half; an ordinary build has nothing here. */
#include "base/peek.h"

#ifdef PENSTOCK_PROTECT_AREA

#include <linux/memfd.h>
#include <unistd.h>

#include "base/check.h"

/* One arena in this build: a second mapping of the same memory lies peek_alias - peek_base further on. */
static uint8_t *peek_base;
static uint8_t *peek_alias;
static uint64_t peek_size;

void *peek_map(uint64_t size, int flags)
{
    CHECK(peek_base == NULL);
    unsigned int memfd_flags = MFD_CLOEXEC;
    if ((flags & MAP_HUGETLB) != 0) {
        memfd_flags |= MFD_HUGETLB | MFD_HUGE_2MB;
    }
    int fd = memfd_create("penstock-arena", memfd_flags);
    if (fd < 0) {
        return MAP_FAILED;
    }
    void *base = MAP_FAILED;
    void *alias = MAP_FAILED;
    if (ftruncate(fd, (off_t)size) == 0) {
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        alias = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (base == MAP_FAILED || alias == MAP_FAILED) {
        return MAP_FAILED;
    }
    peek_base = base;
    peek_alias = alias;
    peek_size = size;
    return base;
}

void peek_protect(void *addr, uint64_t len)
{
    int rc = mprotect(addr, len, PROT_NONE);
    CHECK(rc == 0);
}

const uint8_t *peek_at(const void *addr, uint32_t len)
{
    const uint8_t *at = addr;
    CHECK(len <= PEEK_MAX);
    bool is_arena = peek_base != NULL && at >= peek_base && at < peek_base + peek_size;
    return is_arena ? peek_alias + (at - peek_base) : at;
}

void peek_copy(void *to, const void *from, uint64_t len)
{
    memcpy(to, peek_at(from, 0), len);
}

#else

/* ISO C wants a declaration in every file. */
extern int peek_has_nothing_here;

#endif
