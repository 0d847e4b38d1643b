/* SPDX-License-Identifier: Apache-2.0 */
/* hearing: see the header. */
#include "server/hearing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Its flags, or 0 when it cannot be asked. */
static short interface_flags(const char *name)
{
    struct ifreq request = {.ifr_flags = 0};
    (void)snprintf(request.ifr_name, sizeof(request.ifr_name), "%.15s", name);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return IFF_UP | IFF_RUNNING; /* Out of descriptors is no fault of the interface. */
    }
    short flags = ioctl(fd, SIOCGIFFLAGS, &request) == 0 ? request.ifr_flags : 0;
    close(fd);
    return flags;
}

void hearing_look(const char *listener, const struct receive_plan *plan, uint32_t index, struct hearing *out)
{
    bool is_xdp = plan->ops == &rx_xdp_ops;
    *out = (struct hearing){.listener = listener, .state = HEARING_OK};
    if (!plan->has_device || (!is_xdp && plan->ops != &rx_zcrx_ops)) {
        return;
    }
    (void)snprintf(out->interface, sizeof(out->interface), "%s", plan->interface); /* It fits. */
    uint32_t now = if_nametoindex(plan->interface);
    char renamed[IFNAMSIZ] = "";
    if (now == 0 && if_indextoname(index, renamed) == NULL) {
        out->state = HEARING_GONE;
        return;
    }
    const short wanted = IFF_UP | IFF_RUNNING;
    if (now != 0 && now != index && !is_xdp) {
        out->state = HEARING_REPLACED;
    } else if ((interface_flags(now != 0 ? plan->interface : renamed) & wanted) != wanted) {
        out->state = HEARING_DOWN;
    } else if (is_xdp && !rx_xdp_is_attached(plan->interface)) {
        out->state = HEARING_NO_PROGRAM;
    }
}

int hearing_judge(const struct hearing *all, uint32_t count, struct err *why)
{
    static const char *const texts[] = {
        [HEARING_OK] = "",
        [HEARING_DOWN] = "is down",
        [HEARING_GONE] = "is gone",
        [HEARING_REPLACED] = "was made anew; start the node again",
        [HEARING_NO_PROGRAM] =
            "has not our XDP program: another one is in the way, or the driver refuses it"};
    uint32_t deaf = 0;
    size_t used = 0;
    why->text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].state == HEARING_OK) {
            continue;
        }
        int len =
            snprintf(why->text + used, sizeof(why->text) - used, "%slistener %s receives nothing: %s %s",
                     deaf == 0 ? "" : "; ", all[i].listener, all[i].interface, texts[all[i].state]);
        used =
            len < 0 || (size_t)len >= sizeof(why->text) - used ? sizeof(why->text) - 1 : used + (size_t)len;
        deaf++;
    }
    return deaf > 0 && deaf == count ? -ENETDOWN : 0;
}
