/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zcrx_nodev [RX_BUF_LEN]: registers a device-less zcrx instance (the kernel copies, loopback works) and prints
 * "registered id N" or "refused ERRNO-NAME"; exit status 0 in both cases, 2 when the set-up before it failed.
 * A probe of the kernel, not of penstock: it shows that the lane's kernel can run the device-less cases.
 * vm-link: -luring
 */
#include <errno.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define AREA_BYTES   (4u << 20)
#define REFILL_COUNT 1024u

static void *map_anonymous(size_t bytes)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (base == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return base;
}

static int register_without_device(struct io_uring *ring, uint32_t rx_buf_len, uint32_t *id)
{
	size_t refill_bytes = 4096 + REFILL_COUNT * sizeof(struct io_uring_zcrx_rqe);
	struct io_uring_region_desc region = { 0 };
	struct io_uring_zcrx_area_reg area = { 0 };
	struct io_uring_zcrx_ifq_reg reg = { 0 };
	int rc;

	refill_bytes = (refill_bytes + 4095) & ~(size_t)4095;
	region.size = refill_bytes;
	region.user_addr = (uint64_t)(uintptr_t)map_anonymous(refill_bytes);
	region.flags = IORING_MEM_REGION_TYPE_USER;
	area.addr = (uint64_t)(uintptr_t)map_anonymous(AREA_BYTES);
	area.len = AREA_BYTES;
	reg.rq_entries = REFILL_COUNT;
	reg.flags = ZCRX_REG_NODEV;
	reg.rx_buf_len = rx_buf_len;
	reg.area_ptr = (uint64_t)(uintptr_t)&area;
	reg.region_ptr = (uint64_t)(uintptr_t)&region;
	rc = io_uring_register_ifq(ring, &reg);
	*id = reg.zcrx_id;
	return rc;
}

int main(int argc, char **argv)
{
	struct io_uring_params params = { 0 };
	struct io_uring ring;
	uint32_t id = 0;
	int rc;

	params.flags = IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
	rc = io_uring_queue_init_params(64, &ring, &params);
	if (rc < 0) {
		fprintf(stderr, "ring: %s\n", strerror(-rc));
		return 2;
	}
	rc = register_without_device(&ring, argc > 1 ? (uint32_t)atoi(argv[1]) : 0, &id);
	if (rc < 0)
		printf("refused %s\n", strerrorname_np(-rc));
	else
		printf("registered id %u\n", id);
	io_uring_queue_exit(&ring);
	return 0;
}
