/* SPDX-License-Identifier: Apache-2.0 */
/* nic_genl: one request, its answers, its acknowledgement. libnl drops the extended acknowledgement's text, so the error
 * callback reads it from the raw message (include/uapi/linux/netlink.h, NLMSGERR_ATTR_MSG). */
#include "nic/nic_genl.h"

#include <errno.h>
#include <linux/netlink.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <netlink/netlink.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#ifndef SOL_NETLINK
#define SOL_NETLINK 270
#endif

int nic_genl_open(struct nic_genl *genl, const char *family, struct err *err)
{
    memset(genl, 0, sizeof(*genl));
    genl->sock = nl_socket_alloc();
    if (genl->sock == NULL || genl_connect(genl->sock) < 0) {
        nl_socket_free(genl->sock);
        genl->sock = NULL;
        return err_set(err, -ENOMEM, "cannot open a netlink socket");
    }
    int one = 1;
    /* Refused only by kernels that have no texts to give. */
    (void)setsockopt(nl_socket_get_fd(genl->sock), SOL_NETLINK, NETLINK_EXT_ACK, &one, sizeof(one));
    genl->family = genl_ctrl_resolve(genl->sock, family);
    if (genl->family < 0) {
        nl_socket_free(genl->sock);
        genl->sock = NULL;
        return err_set(err, -EOPNOTSUPP, "this kernel has no netlink family '%s'", family);
    }
    genl->version = 1;
    return 0;
}

void nic_genl_close(struct nic_genl *genl)
{
    nl_socket_free(genl->sock);
    genl->sock = NULL;
}

struct nl_msg *nic_genl_message(struct nic_genl *genl, uint8_t command, int flags)
{
    struct nl_msg *message = nlmsg_alloc();
    if (message == NULL) {
        return NULL;
    }
    if (genlmsg_put(message, NL_AUTO_PORT, NL_AUTO_SEQ, genl->family, 0, flags, command, genl->version) ==
        NULL) {
        nlmsg_free(message);
        return NULL;
    }
    return message;
}

struct genl_call {
    struct nic_genl *genl;
    nic_answer_fn fn;
    void *ctx;
    int rc;
    bool done;
};

static int genl_valid(struct nl_msg *message, void *arg)
{
    struct genl_call *call = arg;
    struct genlmsghdr *header = nlmsg_data(nlmsg_hdr(message));
    if (call->fn != NULL) {
        call->fn(call->ctx, genlmsg_attrdata(header, 0), genlmsg_attrlen(header, 0));
    }
    return NL_OK;
}

static int genl_finish(struct nl_msg *message, void *arg)
{
    (void)message;
    ((struct genl_call *)arg)->done = true;
    return NL_STOP;
}

static int genl_error(struct sockaddr_nl *peer, struct nlmsgerr *error, void *arg)
{
    struct genl_call *call = arg;
    (void)peer;
    call->rc = error->error;
    call->done = true;
    const struct nlmsghdr *outer = (const struct nlmsghdr *)((const uint8_t *)error - NLMSG_HDRLEN);
    if ((outer->nlmsg_flags & NLM_F_ACK_TLVS) != 0) {
        size_t skip = sizeof(*error);
        if ((outer->nlmsg_flags & NLM_F_CAPPED) == 0) {
            skip += NLMSG_ALIGN(error->msg.nlmsg_len) - sizeof(error->msg);
        }
        size_t whole = outer->nlmsg_len - NLMSG_HDRLEN;
        if (skip < whole) {
            const struct nlattr *text =
                nla_find((struct nlattr *)((uint8_t *)error + skip), (int)(whole - skip), NLMSGERR_ATTR_MSG);
            if (text != NULL) {
                snprintf(call->genl->words, sizeof(call->genl->words), "%.*s", nla_len(text),
                         (const char *)nla_data(text));
            }
        }
    }
    return NL_STOP;
}

int nic_genl_call(struct nic_genl *genl, struct nl_msg *message, nic_answer_fn fn, void *ctx)
{
    struct genl_call call = {.genl = genl, .fn = fn, .ctx = ctx};
    genl->words[0] = '\0';
    if (message == NULL) {
        return -ENOMEM;
    }
    struct nl_cb *callbacks = nl_cb_alloc(NL_CB_DEFAULT);
    int rc = callbacks == NULL ? -1 : nl_send_auto(genl->sock, message);
    nlmsg_free(message);
    if (rc < 0) {
        nl_cb_put(callbacks);
        return -EIO;
    }
    nl_cb_set(callbacks, NL_CB_VALID, NL_CB_CUSTOM, genl_valid, &call);
    nl_cb_set(callbacks, NL_CB_FINISH, NL_CB_CUSTOM, genl_finish, &call);
    nl_cb_set(callbacks, NL_CB_ACK, NL_CB_CUSTOM, genl_finish, &call);
    nl_cb_err(callbacks, NL_CB_CUSTOM, genl_error, &call);
    while (!call.done) {
        if (nl_recvmsgs(genl->sock, callbacks) < 0 && !call.done) {
            call.rc = -EIO;
            call.done = true;
        }
    }
    nl_cb_put(callbacks);
    return call.rc;
}
