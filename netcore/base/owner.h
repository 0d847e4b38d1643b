/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner: files that root creates go to the owner of their folder. The node runs as a user of its own, and an administrator may run
 * any command as root beside it: nothing that is left behind may lock the node's user out of its own store.
 *
 * Only a file that the call itself has created changes hands (O_EXCL, which follows no symbolic link), so nobody who may write to the
 * folder gets another file that way. Not for the data path.
 */
#ifndef BASE_OWNER_H
#define BASE_OWNER_H

/* As open(2) with O_CREAT, O_CLOEXEC and mode 0600: the descriptor, or -errno. */
int owner_open(const char *path, int flags);
/* Gives the file behind `fd`, which the caller has just created as `path`, to the owner of its folder. */
void owner_give(int fd, const char *path);

#endif
