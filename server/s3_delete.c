/* SPDX-License-Identifier: Apache-2.0 */
/* s3_delete: DeleteObject and DeleteObjects. */
#include <string.h>

#include "base/check.h"
#include "server/s3_handlers.h"

/* ---- DeleteObject --------------------------------------------------------------------------------------------- */

/* Deleting what is not there is success in S3. */
static void delete_done(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        http_respond_empty(x, 204);
    }
}

void s3_delete_object(struct exchange *x)
{
    s3_request_target(x);
    exchange_submit(x, STORE_OBJECT_DELETE, delete_done);
}

void s3_delete_objects(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}

void s3_delete_returned(struct exchange *x, struct store_request *request)
{
    CHECK(x->magic == 0 && request == NULL);
}
