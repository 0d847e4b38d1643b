/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_genl: requests to generic netlink families over libnl-3, with the kernel's own words for a refusal (extended
 * acknowledgement). Only for files of this folder. Blocking.
 */
#ifndef NIC_NIC_GENL_H
#define NIC_NIC_GENL_H

#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdint.h>

#include "base/err.h"

struct nic_genl {
    struct nl_sock *sock;
    int family;
    uint8_t version;
    char words[256]; /* the kernel's text for the last refusal, or "" */
};

/* Called for each answer; `attrs` points at the answer's first attribute. */
typedef void (*nic_answer_fn)(void *ctx, const struct nlattr *attrs, int len);

/* Opens a socket and resolves the family. -EOPNOTSUPP: this kernel does not have it. */
int nic_genl_open(struct nic_genl *genl, const char *family, struct err *err);
void nic_genl_close(struct nic_genl *genl);
/* A new request message; add attributes with nla_put_*. Ownership passes to nic_genl_call. NULL: out of memory. */
struct nl_msg *nic_genl_message(struct nic_genl *genl, uint8_t command, int flags);
/* Sends, hands each answer to `fn` (may be NULL), waits for the acknowledgement. 0 or -errno; `words` is set. */
int nic_genl_call(struct nic_genl *genl, struct nl_msg *message, nic_answer_fn fn, void *ctx);

#endif
