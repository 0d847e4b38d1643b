/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dioalign PATH: prints what the kernel demands of direct I/O on a file or device, as "mem N offset N", or
 * "unknown" when it does not say; exit status 1 when statx itself fails.
 */
#include <fcntl.h>
#include <linux/stat.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct statx st;

	memset(&st, 0, sizeof(st));
	if (argc != 2 || syscall(SYS_statx, AT_FDCWD, argv[1], 0, STATX_DIOALIGN, &st) != 0) {
		perror("statx");
		return 1;
	}
	if (st.stx_mask & STATX_DIOALIGN)
		printf("mem %u offset %u\n", st.stx_dio_mem_align, st.stx_dio_offset_align);
	else
		printf("unknown\n");
	return 0;
}
