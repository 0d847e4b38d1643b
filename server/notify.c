/* SPDX-License-Identifier: Apache-2.0 */
/* notify: one datagram to the socket named by NOTIFY_SOCKET; "@" stands for the abstract namespace. See sd_notify(3). */
#include "server/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"

void notify_send(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(to.sun_path)) {
        return;
    }
    memcpy(to.sun_path, path, strlen(path));
    to.sun_path[0] = path[0] == '@' ? '\0' : path[0];
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&to, len) < 0) {
        LOG_WRN("notify_failed", "socket=%s error=%s", LOG_Q(path), LOG_Q(err_text(-errno)));
    }
    close(fd);
}
