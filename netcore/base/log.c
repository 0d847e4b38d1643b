/* SPDX-License-Identifier: Apache-2.0 */
/* log: formats a line on the stack, applies the call site's rate limit, writes it with one write(2). */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

#define LOG_LINE_MAX 2048
#define LOG_QUOTE_SLOTS 8
#define LOG_QUOTE_MAX 512

static _Atomic int log_level_now = LOG_INFO;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_level_set(enum log_level level)
{
    log_level_now = (int)level;
}

enum log_level log_level_get(void)
{
    return (enum log_level)log_level_now;
}

bool log_level_parse(const char *text, enum log_level *out)
{
    for (size_t i = 0; i < ARRAY_COUNT(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

/* Says whether this line may be written, and how many before it were not. Races between threads may let a line
 * more through: that is harmless. */
static bool log_limit_take(struct log_limit *limit, uint64_t now_ns, uint32_t *suppressed)
{
    *suppressed = 0;
    if (limit->window_start_ns == 0 || now_ns - limit->window_start_ns > LOG_LIMIT_WINDOW_NS) {
        limit->window_start_ns = now_ns;
        limit->said = 0;
    }
    if (limit->said >= LOG_LIMIT_BURST) {
        limit->suppressed++;
        return false;
    }
    limit->said++;
    *suppressed = atomic_exchange(&limit->suppressed, 0U);
    return true;
}

static int log_format_time(char *to, size_t size)
{
    uint64_t now_ns = clock_realtime_ns();
    time_t seconds = (time_t)(now_ns / NS_PER_S);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t len = strftime(to, size, "time=%Y-%m-%dT%H:%M:%S", &tm);
    return (int)len + snprintf(to + len, size - len, ".%03uZ", (unsigned)(now_ns % NS_PER_S / NS_PER_MS));
}

void log_write(enum log_level level, struct log_limit *limit, const char *event, const char *format, ...)
{
    uint32_t suppressed = 0;
    if ((int)level < log_level_now ||
        (limit != NULL && !log_limit_take(limit, clock_monotonic_ns(), &suppressed))) {
        return;
    }
    char line[LOG_LINE_MAX];
    size_t len = (size_t)log_format_time(line, sizeof(line));
    len += (size_t)snprintf(line + len, sizeof(line) - len, " level=%s event=%s ", level_names[level], event);
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + len, sizeof(line) - len - 64, format, args);
    va_end(args);
    if (body > 0) {
        size_t room = sizeof(line) - len - 64 - 1;
        len += (size_t)body < room ? (size_t)body : room;
    }
    if (suppressed > 0) {
        len += (size_t)snprintf(line + len, sizeof(line) - len, " suppressed=%u", suppressed);
    }
    line[len++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored; /* A log that cannot be written has nowhere to complain. */
}

const char *log_quote(const char *value)
{
    static __thread char slots[LOG_QUOTE_SLOTS][LOG_QUOTE_MAX];
    static __thread unsigned slot_next;
    char *to = slots[slot_next++ % LOG_QUOTE_SLOTS];
    size_t len = 0;
    to[len++] = '"';
    for (const char *at = value; *at != '\0'; at++) {
        if (len > LOG_QUOTE_MAX - 12) {
            memcpy(to + len, "...", 3);
            len += 3;
            break;
        }
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\') {
            to[len++] = '\\';
            to[len++] = (char)c;
        } else if (c < 0x20 || c == 0x7f) {
            len += (size_t)snprintf(to + len, 5, "\\x%02x", c);
        } else {
            to[len++] = (char)c;
        }
    }
    to[len++] = '"';
    to[len] = '\0';
    return to;
}
