/* SPDX-License-Identifier: Apache-2.0 */
#include "server/s3_handlers.h"
void s3_create_upload(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}
void s3_complete_upload(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}
void s3_abort_upload(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}
