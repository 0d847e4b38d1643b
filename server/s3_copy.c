/* SPDX-License-Identifier: Apache-2.0 */
#include "server/s3_handlers.h"
void s3_copy_object(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}
void s3_upload_part_copy(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}
