// SPDX-License-Identifier: Apache-2.0
//
// From a raw request target (and Host) to bucket, key, query parameters and the S3 operation that is meant.
//
// Owns: percent-decoding, path style against virtual-host style, sub-resources, bucket name rules.
// Must not normalise: S3 keys are exact bytes. "." and ".." segments, "//" and a literal '+' in the path stay as they are.
// Keys are valid UTF-8 of 1 to 1,024 bytes after decoding (NUL included, so always pass the length); anything else is
// refused, as S3 does.
//
// Classification: a known sub-resource decides together with the method. A parameter name that nobody knows and that has
// no value ("?foo", "?foo=") is a sub-resource from the future and becomes S3_OP_UNSUPPORTED (501): ignoring it would
// turn PUT /key?newfeature into an overwrite. Unknown parameters with a value are ignored, as S3 does.

#ifndef SERVER_S3_TARGET_H
#define SERVER_S3_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/http_head.h"
#include "server/s3_error.h"
#include "server/text.h"

#define S3_KEY_MAX 1024u
#define S3_BUCKET_MIN 3u
#define S3_BUCKET_MAX 63u
#define S3_PARAMS_MAX 64u
#define S3_UPLOAD_ID_MAX 128u
#define S3_PART_NUMBER_MAX 10000u

enum s3_permission {
    S3_PERMISSION_READ = 1,
    S3_PERMISSION_WRITE = 2,
    S3_PERMISSION_LIST = 4,
    S3_PERMISSION_DELETE = 8,
};

enum s3_op {
#define S3_OP(symbol, name, permission) S3_OP_##symbol,
#include "server/s3_op.def"
#undef S3_OP
    S3_OP_COUNT,
};

const char *s3_op_name(enum s3_op op);
enum s3_permission s3_op_permission(enum s3_op op);

enum s3_scope {
    S3_SCOPE_SERVICE,
    S3_SCOPE_BUCKET,
    S3_SCOPE_OBJECT,
};

struct s3_param {
    struct text name;  // decoded
    struct text value; // decoded; absent when there was no '=', empty when nothing followed it
};

struct s3_target_input {
    enum http_method method;
    struct text target;         // raw request-target
    struct text host;           // Host header, port included; may be absent
    const struct text *domains; // lower-case base domains for virtual-host style, e.g. "s3.example.org"
    size_t domain_count;
    bool has_copy_source; // x-amz-copy-source is present
};

struct s3_target {
    enum s3_op op;
    enum s3_scope scope;
    bool is_virtual_host;
    struct text bucket;      // absent in service scope; a valid bucket name otherwise
    struct text key;         // decoded bytes; absent outside object scope
    struct text subresource; // e.g. "acl"; absent when there is none
    struct text path;        // raw path as received (absolute-form stripped), for signatures
    struct text query;       // raw query without '?'; absent when there is none
    struct text host;        // authority that applies: from absolute-form, else the Host header
    uint32_t part_number;    // 1..10000 when partNumber was given, else 0
    size_t param_count;
    struct s3_param params[S3_PARAMS_MAX];
};

// Parses. scratch must hold at least input->target.len bytes (CHECKed): decoded keys and parameters live there; bucket,
// path and query point into input->target or input->host. The results are good for as long as both live.
// Returns S3_OK or the error to answer: INVALID_URI (bad percent-encoding, '#', not UTF-8 in the key, too many
// parameters), INVALID_BUCKET_NAME, KEY_TOO_LONG, INVALID_REQUEST (two sub-resources at once), METHOD_NOT_ALLOWED,
// INVALID_PART_NUMBER, INVALID_ARGUMENT, NOT_FOUND_VERSION (a versionId other than null). On an error the fields set so far are valid, for logs and the Resource element.
// Unknown sub-resources are no error here: op is S3_OP_UNSUPPORTED, to be answered with NOT_IMPLEMENTED after
// authentication.
enum s3_error s3_target_parse(struct s3_target *target, const struct s3_target_input *input, char *scratch,
                              size_t scratch_size);

// The first parameter with this exact (case-sensitive) name; absent when it is not there, never absent when it is
// (a parameter without '=' yields an empty text).
struct text s3_target_param(const struct s3_target *target, const char *name);
bool s3_target_has_param(const struct s3_target *target, const char *name);

// x-amz-copy-source: "[/]bucket/key[?versionId=null]", percent-decoded. scratch as above. Only the null version exists
// here; another version id gives NOT_FOUND_VERSION.
struct s3_copy_source {
    struct text bucket;
    struct text key;
};
enum s3_error s3_target_parse_copy_source(struct s3_copy_source *source, struct text value, char *scratch,
                                          size_t scratch_size);

// The rules for bucket names of S3: 3..63 of [a-z0-9.-], begin and end with a letter or digit, no "..", no ".-" or "-.",
// not an IPv4 address, none of the reserved prefixes and suffixes.
bool s3_bucket_name_is_valid(struct text name);

// Decodes %XX into out (which must hold in.len bytes and may be in.at itself). '+' becomes a space only if plus_is_space.
// Returns the decoded length, or -EINVAL on a broken escape.
long s3_percent_decode(struct text in, char *out, bool plus_is_space);

#endif
