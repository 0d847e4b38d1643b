/* SPDX-License-Identifier: Apache-2.0 */
/* object: freeing a looked-up object. */
#include "storage/object.h"

#include <stdlib.h>

#include "base/check.h"

void object_free(struct store_object *object)
{
    if (object == NULL) {
        return;
    }
    CHECK(object->magic == OBJECT_MAGIC);
    object->magic = 0;
    /* All checksum lists are one allocation, which the first piece's list begins. */
    if (object->piece_count > 0) {
        free((void *)(uintptr_t)object->pieces[0].extent.checksums);
    }
    free(object->pieces);
    free(object->parts);
    free(object);
}
