// SPDX-License-Identifier: Apache-2.0
//
// Access keys and what each may do: the credentials file, parsed and asked.
//
// The file is line based, UTF-8, '#' begins a comment line:
//
//	key AKIDEXAMPLE wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY
//	  allow read,list   captures/2024-
//	  allow write       captures/
//	key backup-writer another-secret-of-8-or-more
//	  allow all         *
//
// `key ID SECRET` begins a key; the `allow` lines below it are its whole policy (none: it may do nothing). A rule names
// permissions out of read, write, list, delete, all, and what they cover: `*` (every bucket), `bucket` (the bucket and all
// of its keys), or `bucket/prefix` (keys of that bucket that start with the prefix, byte for byte; `bucket/` means all).
// The file must be a regular file, owned by the user that runs the server or by root, and not accessible to group or
// others; otherwise it is refused. Secrets are wiped from memory when the store is freed.
//
// Loading happens at start and on SIGHUP, never on the data path; a store is immutable afterwards and may be read by all
// workers. Replacing it is the caller's business: publish the new one, free the old one when no worker uses it.

#ifndef SERVER_AUTH_KEYS_H
#define SERVER_AUTH_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "server/s3_target.h"
#include "server/text.h"

#define AUTH_KEYS_MAX 4096u
#define AUTH_RULES_MAX 64u // per key
#define AUTH_KEYS_FILE_MAX (1u << 20)

struct auth_keys; // opaque
struct auth_key;  // opaque; borrowed from its store

struct auth_keys_error {
    uint32_t line;     // 0 when it is about the text as a whole
    char message[160]; // never contains a secret
};

// Parses text (which is copied). generation is any number that differs from the previous store's.
// 0, -EINVAL with *error filled, or -ENOMEM.
int auth_keys_parse(struct auth_keys **keys, struct text text, uint64_t generation,
                    struct auth_keys_error *error);

// Reads and parses a file after checking owner and permissions on the open descriptor. Besides the above: -errno of
// open, fstat or read; -EPERM for the wrong owner or mode; -EFBIG. err begins with the path, and the line where there is one.
int auth_keys_load(struct auth_keys **keys, const char *path, uint64_t generation, struct err *err);
void auth_keys_free(struct auth_keys *keys);

size_t auth_keys_count(const struct auth_keys *keys);
uint64_t auth_keys_generation(const struct auth_keys *keys);

// NULL when there is no such key (-> INVALID_ACCESS_KEY).
const struct auth_key *auth_keys_find(const struct auth_keys *keys, struct text access_key);
struct text auth_key_id(const struct auth_key *key);
struct text auth_key_secret(const struct auth_key *key);

// May this key do it? name is the object key; for listings the prefix asked for, never absent (a key that may list only
// "b/2024-" may list with prefix "2024-05" but not with ""); absent for operations on the bucket itself. Those need a rule
// for the whole bucket, except for LIST (HeadBucket, GetBucketLocation and the like), which any LIST rule inside the bucket
// allows, because clients probe before they do anything. ListBuckets passes an absent bucket and is allowed for any key
// with a LIST right; filter its result with auth_key_may_see_bucket().
bool auth_key_may(const struct auth_key *key, enum s3_permission permission, struct text bucket,
                  struct text name);
bool auth_key_may_see_bucket(const struct auth_key *key, struct text bucket);

#endif
