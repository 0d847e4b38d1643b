/* SPDX-License-Identifier: Apache-2.0 */
/* notify: tells a service manager how far we are (the datagram protocol of sd_notify). Without one it does nothing. */
#ifndef SERVER_NOTIFY_H
#define SERVER_NOTIFY_H

/* "READY=1", "STOPPING=1", "STATUS=...". Never fails the caller: a manager that does not listen is its own problem. */
void notify_send(const char *state);

#endif
