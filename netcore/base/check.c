/* SPDX-License-Identifier: Apache-2.0 */
/* check: the failing half of CHECK. It formats into the stack and uses write(2) only, so that it works when memory
 * or stdio is what broke. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void check_fail(const char *file, int line, const char *condition)
{
    char text[512];
    int len = snprintf(text, sizeof(text), "%s:%d: check failed: %s\n", file, line, condition);
    if (len > 0) {
        size_t size = (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1;
        ssize_t ignored = write(STDERR_FILENO, text, size);
        (void)ignored; /* We are about to abort; there is nowhere left to report to. */
    }
    abort();
}
