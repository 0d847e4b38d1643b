/* SPDX-License-Identifier: Apache-2.0 */
/* err: texts for project codes and the formatted half of struct err. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const project_texts[] = {
    [ERR_CORRUPT - ERR_CORRUPT] = "stored data does not match its checksum",
    [ERR_NOT_FORMATTED - ERR_CORRUPT] = "device is not formatted for penstock",
    [ERR_FOREIGN_STORE - ERR_CORRUPT] = "device belongs to another store",
    [ERR_VERSION - ERR_CORRUPT] = "on-disk format is newer than this program",
    [ERR_DEVICE_FAILED - ERR_CORRUPT] = "device has failed",
    [ERR_NO_SUCH_BUCKET - ERR_CORRUPT] = "no such bucket",
    [ERR_BUCKET_EXISTS - ERR_CORRUPT] = "bucket exists already",
    [ERR_BUCKET_NOT_EMPTY - ERR_CORRUPT] = "bucket is not empty",
    [ERR_NO_SUCH_KEY - ERR_CORRUPT] = "no such key",
    [ERR_NO_SUCH_UPLOAD - ERR_CORRUPT] = "no such multipart upload",
    [ERR_INVALID_PART - ERR_CORRUPT] = "a named part is absent or has another ETag",
    [ERR_INVALID_PART_ORDER - ERR_CORRUPT] = "parts are not in ascending order",
    [ERR_PART_TOO_SMALL - ERR_CORRUPT] = "a part other than the last is too small",
    [ERR_PRECONDITION - ERR_CORRUPT] = "precondition failed",
    [ERR_LIMIT - ERR_CORRUPT] = "a configured limit is reached",
    [ERR_SHUTDOWN - ERR_CORRUPT] = "shutting down",
    [ERR_INVALID_CONFIG - ERR_CORRUPT] = "configuration refused",
};

_Static_assert(sizeof(project_texts) / sizeof(project_texts[0]) == ERR_CODE_LAST - ERR_CORRUPT,
               "a text per code");

const char *err_text(int code)
{
    if (code >= 0) {
        return "no error";
    }
    if (code >= ERR_CORRUPT && code < ERR_CODE_LAST) {
        return project_texts[code - ERR_CORRUPT];
    }
    const char *name = strerrordesc_np(-code); /* Unlike strerror, it is thread-safe and never allocates. */
    return name != NULL ? name : "unknown error";
}

int err_set(struct err *err, int code, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
    }
    return code;
}

int err_prefix(struct err *err, int code, const char *format, ...)
{
    if (err != NULL) {
        struct err old = *err;
        va_list args;
        va_start(args, format);
        int len = vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
        if (len >= 0 && (size_t)len < sizeof(err->text)) {
            snprintf(err->text + len, sizeof(err->text) - (size_t)len, ": %.*s", 900, old.text);
        }
    }
    return code;
}
