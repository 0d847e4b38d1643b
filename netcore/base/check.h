/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check: assertions for our own bugs.
 *
 * CHECK stays on in every build: it names the file, line and condition and aborts. It is only for conditions that
 * our own code must guarantee; bytes from a peer or a disk are handled, never asserted. DCHECK is for lines where a
 * benchmark proved that CHECK costs too much; it is compiled in with PENSTOCK_DEBUG only.
 */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

/* Prints "file:line: check failed: condition" to stderr with write(2) and aborts. Never returns; callable anywhere. */
__attribute__((noreturn, cold)) void check_fail(const char *file, int line, const char *condition);

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (__builtin_expect(!(condition), 0)) {                                                             \
            check_fail(__FILE__, __LINE__, #condition);                                                      \
        }                                                                                                    \
    } while (0)

#ifdef PENSTOCK_DEBUG
#define DCHECK(condition) CHECK(condition)
#else
#define DCHECK(condition)                                                                                    \
    do {                                                                                                     \
        (void)sizeof(condition); /* keeps names used without evaluating anything */                          \
    } while (0)
#endif

#endif
