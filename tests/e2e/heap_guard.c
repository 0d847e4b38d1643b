/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_guard: linked into a copy of the program, ends it when a worker allocates on the data path.
 *
 * A worker takes its memory before it is ready; from its first turn of the loop until it closes, our code asks the heap for nothing.
 * The allocation functions are replaced for the whole process, so that what the C library does on our behalf (a stream, a sort
 * with a large table) is seen as well. The thread counts as a worker between its first worker_turn and its worker_close,
 * both caught by the linker's --wrap: the program's own objects are the ones that ship. Who allocates is the innermost caller
 * outside the C library. Libraries that may are named in `exceptions`, each with its reason, and their calls are counted.
 * It must not allocate itself.
 *
 * At exit it prints one line "heap_guard: turns=N LIBRARY=N ..." for the test. HEAP_GUARD_PLANT=1 in the environment has the
 * guard allocate once on a worker, as if our code had: the test's negative control. With HEAP_GUARD_LOG=FILE it writes what it
 * found there and lets the program go on, to find everything in one run.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/worker.h"

#define FRAMES_MAX 48

struct exception {
    const char *library; /* as its file name begins */
    uint32_t
        hooks; /* functions of ours that may stand between it and the heap: its memory is ours to count */
    const char *why;
    _Atomic uint64_t count;
};

/* The complete list. What is missing here ends the program. SQLite is not on it: workers never call it. */
static struct exception exceptions[] = {
    {"libcrypto.so", 0, "digest and cipher contexts: of a fixed size, as many as requests in flight", 0},
    {"libssl.so", 0, "records of TLS connections: bounded by connections_max", 0},
    {"libexpat.so", 2, "documents of control requests: S3_XML_READ_MEMORY_MAX each, kept by s3_xml_read.c",
     0},
};

static _Thread_local bool is_worker;
static _Thread_local bool is_inside; /* in the guard itself */
static _Atomic uint64_t turns;
static int report_fd = STDERR_FILENO;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __real_worker_turn(struct worker *worker, uint64_t now_ns, uint64_t wall_ns);
void __real_worker_close(struct worker *worker);
void __wrap_worker_turn(struct worker *worker, uint64_t now_ns, uint64_t wall_ns);
void __wrap_worker_close(struct worker *worker);

static const char *frame_library(void *address)
{
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL) {
        return "unknown";
    }
    const char *slash = strrchr(info.dli_fname, '/');
    return slash == NULL ? info.dli_fname : slash + 1;
}

static bool is_from(const char *library, void *frame)
{
    return strncmp(frame_library(frame), library, strlen(library)) == 0;
}

static bool is_excepted(void *const *frames, int count)
{
    int at = 2; /* guard_check and the replaced function */
    while (at < count && is_from("libc.so", frames[at])) {
        at++;
    }
    for (size_t i = 0; i < sizeof(exceptions) / sizeof(exceptions[0]); i++) {
        int last = at + (int)exceptions[i].hooks;
        for (int caller = at; caller <= last && caller < count; caller++) {
            if (is_from(exceptions[i].library, frames[caller])) {
                exceptions[i].count++;
                return true;
            }
        }
    }
    return false;
}

static __attribute__((noinline)) void guard_check(const char *function, size_t size)
{
    if (!is_worker || is_inside) {
        return;
    }
    int error = errno;
    void *frames[FRAMES_MAX];
    is_inside = true;
    int count = backtrace(frames, FRAMES_MAX);
    if (!is_excepted(frames, count)) {
        char text[128];
        int len = snprintf(text, sizeof(text), "heap_guard: %s(%zu) on a worker:\n", function, size);
        ssize_t written = write(report_fd, text, (size_t)len);
        (void)written; /* The end that follows says it too. */
        backtrace_symbols_fd(frames, count, report_fd);
        if (report_fd == STDERR_FILENO) {
            abort();
        }
    }
    is_inside = false;
    errno = error;
}

void *malloc(size_t size)
{
    guard_check("malloc", size);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    guard_check("calloc", count * size);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    guard_check("realloc", size);
    return __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size)
{
    guard_check("memalign", size);
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    guard_check("aligned_alloc", size);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    guard_check("posix_memalign", size);
    void *memory = __libc_memalign(alignment, size);
    if (memory == NULL) {
        return ENOMEM;
    }
    *out = memory;
    return 0;
}

static void guard_plant(void)
{
    void *volatile planted = malloc(1); /* volatile: the compiler would drop an unused allocation. */
    free(planted);
}

void __wrap_worker_turn(struct worker *worker, uint64_t now_ns, uint64_t wall_ns)
{
    is_worker = true;
    if (turns++ == 0 && getenv("HEAP_GUARD_PLANT") != NULL) {
        guard_plant();
    }
    __real_worker_turn(worker, now_ns, wall_ns);
}

void __wrap_worker_close(struct worker *worker)
{
    is_worker = false;
    __real_worker_close(worker);
}

static __attribute__((constructor)) void guard_begin(void)
{
    void *frame;
    (void)backtrace(&frame, 1); /* Loads the unwinder, which allocates the first time. */
    const char *path = getenv("HEAP_GUARD_LOG");
    if (path != NULL) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        report_fd = fd < 0 ? STDERR_FILENO : fd;
    }
}

static __attribute__((destructor)) void guard_end(void)
{
    if (turns == 0) {
        return; /* Not a node: one of the other subcommands. */
    }
    (void)fprintf(stderr, "heap_guard: turns=%llu", (unsigned long long)turns);
    for (size_t i = 0; i < sizeof(exceptions) / sizeof(exceptions[0]); i++) {
        (void)fprintf(stderr, " %s=%llu", exceptions[i].library, (unsigned long long)exceptions[i].count);
    }
    (void)fprintf(stderr, "\n"); /* Nobody to tell that the error stream is gone. */
}
