/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log: one structured line per state change, on stderr, as logfmt:
 *   time=2026-11-30T10:00:00.123Z level=info event=listener_ready name=bulk path=socket why="..."
 * The data path counts and does not log. A line is written with one write(2), so lines of several threads do not mix.
 * Rate limit: each call site (struct log_limit) may say LOG_LIMIT_BURST lines in LOG_LIMIT_WINDOW_NS; what was
 * swallowed is reported as suppressed=N on the next line that gets through. Thread-safe.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

#define LOG_LIMIT_BURST 10U
#define LOG_LIMIT_WINDOW_NS 10000000000ULL

struct log_limit {
    _Atomic uint64_t window_start_ns;
    _Atomic uint32_t said;
    _Atomic uint32_t suppressed;
};

/* The lowest level that is written; default LOG_INFO. May be changed while running (admin, SIGHUP). */
void log_level_set(enum log_level level);
enum log_level log_level_get(void);
/* "debug", "info", "warn", "error" -> level; false for anything else. */
bool log_level_parse(const char *text, enum log_level *out);

/* `event` is a bare word; `format` gives the rest of the line as logfmt pairs. Values with spaces go through
 * LOG_Q, which quotes and escapes. */
__attribute__((format(printf, 4, 5))) void log_write(enum log_level level, struct log_limit *limit,
                                                     const char *event, const char *format, ...);

/* Quotes a value for logfmt into one of 8 rotating per-thread buffers of 512 bytes; longer values are cut with "...". */
const char *log_quote(const char *value);
#define LOG_Q(value) log_quote(value)

#define LOG_AT(level, event, ...)                                                                            \
    do {                                                                                                     \
        static struct log_limit log_limit_here;                                                              \
        log_write((level), &log_limit_here, (event), __VA_ARGS__);                                           \
    } while (0)
#define LOG_DBG(event, ...) LOG_AT(LOG_DEBUG, event, __VA_ARGS__)
#define LOG_INF(event, ...) LOG_AT(LOG_INFO, event, __VA_ARGS__)
#define LOG_WRN(event, ...) LOG_AT(LOG_WARN, event, __VA_ARGS__)
#define LOG_ERR(event, ...) LOG_AT(LOG_ERROR, event, __VA_ARGS__)

#endif
