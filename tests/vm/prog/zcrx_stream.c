/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zcrx_stream recv IFNAME QUEUE PORT BYTES [KEY=VALUE...]: receives BYTES on each connection with io_uring zero copy
 *     receive from one queue, checks every byte, prints "listening", then "result KEY=VALUE..." and exits 0; a
 *     registration that the kernel refuses prints "refused ERRNO-NAME" and exits 3.
 *     buf=N buffer length; area=N bytes; pages=small|thp|huge; rq=N refill entries; conns=N; hold=1 keeps all
 *     buffers until the kernel reports that it has none left; wait=SECONDS without progress before it gives up;
 *     skip=BYTES before completions are counted; rcvbuf=BYTES, so that the window is never what ends a packet.
 * zcrx_stream send ADDRESS PORT BYTES [conns=N] [chunk=N] [flush=1]: the other side; flush: each chunk goes out at once.
 * zcrx_stream plain PORT: accepts one connection, calls recv() once, prints "recv ERRNO-NAME" or "recv ok".
 *
 * A probe of kernel and driver, not of penstock: what it counts is what the kernel handed over. Both sides know the
 * data by position (a repeating pattern that starts at a place given by the sender's port).
 * vm-link: -luring
 */
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNS_MAX    128
#define PATTERN_LEN  1048583u /* prime, so that no buffer size divides it */
#define SEND_PIECES  64
#define HELD_MAX     (1u << 20)
#define EVENT_DATA   1000u
#define ACCEPT_DATA  1001u
#define ENTRY_LEN    16u
#define PAGE         4096u

/* From linux/io_uring/zcrx.h of 7.3; the headers of liburing 2.15 do not have these yet. */
enum { EVENT_ALLOC_FAIL = 0, EVENT_COPY = 1, CTRL_ARM_EVENT = 2, EVENT_FLAG_STATS = 1 };

struct event_stats {
	uint64_t copy_count, copy_bytes;
};

struct event_desc {
	uint64_t user_data;
	uint32_t type_mask, flags;
	uint64_t stats_offset, reserved[9];
};

struct ifq_reg {
	uint32_t if_idx, if_rxq, rq_entries, flags;
	uint64_t area_ptr, region_ptr;
	struct io_uring_zcrx_offsets offsets;
	uint32_t zcrx_id, rx_buf_len;
	uint64_t event_desc, reserved[2];
};

struct options {
	uint64_t buf, area, rq, conns, hold, wait, chunk, flush, skip, rcvbuf;
	const char *pages;
};

struct conn {
	int fd;
	bool done;
	uint64_t received, phase;
};

struct receiver {
	struct io_uring ring;
	struct conn conns[CONNS_MAX];
	unsigned conn_count, done_count;
	uint64_t bytes_each;
	char *area;
	uint64_t area_token;
	uint32_t zcrx_id, entries;
	uint32_t *khead, *ktail, tail;
	struct io_uring_zcrx_rqe *entry;
	volatile struct event_stats *stats;
	uint64_t *held; /* offsets not returned yet, in order of arrival */
	size_t held_first, held_count;
	bool holding;
	uint64_t skip, cqes, bytes, largest, bad, rearm, no_memory, no_space, alloc_fail;
	uint64_t not_multiple_of_4;
	int error;
};

static char pattern[2 * PATTERN_LEN];

static void die(const char *what, int error)
{
	fprintf(stderr, "%s: %s\n", what, strerror(error));
	exit(2);
}

static void pattern_make(void)
{
	uint32_t x = 2463534242u;

	for (size_t i = 0; i < PATTERN_LEN; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		pattern[i] = (char)x;
		pattern[i + PATTERN_LEN] = (char)x;
	}
}

static bool pattern_equal(const char *data, uint64_t offset, uint64_t len)
{
	while (len) {
		uint64_t n = len < PATTERN_LEN ? len : PATTERN_LEN;

		if (memcmp(data, pattern + offset % PATTERN_LEN, n))
			return false;
		data += n;
		offset += n;
		len -= n;
	}
	return true;
}

static uint64_t phase_of_port(uint16_t port)
{
	return (uint64_t)port * 7919 % PATTERN_LEN;
}

static void options_read(struct options *o, int argc, char **argv, int from)
{
	*o = (struct options){ .area = 16 << 20, .rq = 4096, .conns = 1, .wait = 30, .chunk = 1 << 20, .pages = "huge" };
	for (int i = from; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			die(argv[i], EINVAL);
		*value++ = 0;
		if (!strcmp(argv[i], "pages")) {
			o->pages = value;
			continue;
		}
		const struct {
			const char *name;
			uint64_t *to;
		} known[] = { { "buf", &o->buf },     { "area", &o->area }, { "rq", &o->rq },      { "conns", &o->conns },
			      { "hold", &o->hold },   { "wait", &o->wait }, { "chunk", &o->chunk },
			      { "flush", &o->flush }, { "skip", &o->skip },	  { "rcvbuf", &o->rcvbuf } };
		size_t k;

		for (k = 0; k < sizeof(known) / sizeof(known[0]) && strcmp(known[k].name, argv[i]); k++)
			;
		if (k == sizeof(known) / sizeof(known[0]))
			die(argv[i], EINVAL);
		*known[k].to = strtoull(value, NULL, 0);
	}
}

static char *area_map(const struct options *o)
{
	bool huge = !strcmp(o->pages, "huge");
	size_t bytes = o->area, slack = 2 << 20;
	char *base;

	base = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | (huge ? MAP_HUGETLB : 0), -1, 0);
	if (base == MAP_FAILED)
		die("mmap of the area", errno);
	/* Transparent huge pages need a start on their boundary; the slack is never touched. */
	base = (char *)(((uintptr_t)base + slack - 1) & ~(uintptr_t)(slack - 1));
	if (!huge && madvise(base, bytes, strcmp(o->pages, "thp") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE))
		die("madvise", errno);
	memset(base, 0, bytes);
	return base;
}

static void zcrx_register(struct receiver *r, const struct options *o, const char *ifname, unsigned queue)
{
	size_t region_bytes = (PAGE + o->rq * ENTRY_LEN + PAGE - 1) / PAGE * PAGE + PAGE;
	struct io_uring_region_desc region = { .size = region_bytes, .flags = IORING_MEM_REGION_TYPE_USER };
	struct io_uring_zcrx_area_reg area = { .len = o->area };
	struct event_desc event = { .user_data = EVENT_DATA, .type_mask = 1 << EVENT_ALLOC_FAIL, .flags = EVENT_FLAG_STATS };
	struct ifq_reg reg = { .if_rxq = queue, .rq_entries = (uint32_t)o->rq, .rx_buf_len = (uint32_t)o->buf };
	char *base;
	int rc;

	base = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (base == MAP_FAILED)
		die("mmap of the refill ring", errno);
	r->area = area_map(o);
	region.user_addr = (uintptr_t)base;
	area.addr = (uintptr_t)r->area;
	event.stats_offset = region_bytes - PAGE;
	reg.if_idx = if_nametoindex(ifname);
	reg.area_ptr = (uintptr_t)&area;
	reg.region_ptr = (uintptr_t)&region;
	reg.event_desc = (uintptr_t)&event;
	rc = io_uring_register_ifq(&r->ring, (struct io_uring_zcrx_ifq_reg *)&reg);
	if (rc < 0) {
		printf("refused %s\n", strerrorname_np(-rc));
		exit(3);
	}
	r->khead = (uint32_t *)(base + reg.offsets.head);
	r->ktail = (uint32_t *)(base + reg.offsets.tail);
	r->entry = (struct io_uring_zcrx_rqe *)(base + reg.offsets.rqes);
	r->entries = reg.rq_entries;
	r->stats = (volatile struct event_stats *)(base + event.stats_offset);
	r->zcrx_id = reg.zcrx_id;
	r->area_token = area.rq_area_token;
}

/* Both address families on one socket, or IPv4 alone on a kernel without the other; ports lie at the same place. */
static int listen_on(uint16_t port, int receive_buffer)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, fd = socket(AF_INET6, SOCK_STREAM, 0);
	bool only_v4 = fd < 0 && errno == EAFNOSUPPORT;

	if (only_v4)
		fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    (receive_buffer && setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive_buffer, sizeof(receive_buffer))) ||
	    bind(fd, only_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6, only_v4 ? sizeof(v4) : sizeof(v6)) ||
	    listen(fd, CONNS_MAX))
		die("listen", errno);
	return fd;
}

static void receive_arm(struct receiver *r, unsigned index)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);

	io_uring_prep_rw(IORING_OP_RECV_ZC, sqe, r->conns[index].fd, NULL, 0, 0);
	sqe->ioprio |= IORING_RECV_MULTISHOT;
	sqe->zcrx_ifq_idx = r->zcrx_id;
	sqe->user_data = index;
}

static void accepted(struct receiver *r, int fd)
{
	struct sockaddr_in6 peer;
	socklen_t len = sizeof(peer);
	struct conn *c = &r->conns[r->conn_count];

	if (fd < 0)
		die("accept", -fd);
	if (getpeername(fd, (struct sockaddr *)&peer, &len))
		die("getpeername", errno);
	c->fd = fd;
	c->phase = phase_of_port(ntohs(peer.sin6_port));
	receive_arm(r, r->conn_count++);
}

/* Returns what is held to the refill ring, as far as that has room. */
static void refill(struct receiver *r)
{
	uint32_t used = r->tail - __atomic_load_n(r->khead, __ATOMIC_ACQUIRE);

	while (r->held_first < r->held_count && used < r->entries) {
		struct io_uring_zcrx_rqe *e = &r->entry[r->tail & (r->entries - 1)];

		memset(e, 0, sizeof(*e));
		e->off = r->held[r->held_first++] | r->area_token;
		r->tail++;
		used++;
	}
	__atomic_store_n(r->ktail, r->tail, __ATOMIC_RELEASE);
	if (r->held_first == r->held_count)
		r->held_first = r->held_count = 0;
}

static void control(struct receiver *r, unsigned op)
{
	struct zcrx_ctrl ctrl = { .zcrx_id = r->zcrx_id, .op = op };
	int rc = io_uring_register_zcrx_ctrl(&r->ring, &ctrl);

	if (rc < 0)
		fprintf(stderr, "zcrx control %u: %s\n", op, strerror(-rc));
}

static void received(struct receiver *r, struct conn *c, const struct io_uring_cqe *cqe)
{
	const struct io_uring_zcrx_cqe *where = (const struct io_uring_zcrx_cqe *)(cqe + 1);
	uint64_t off = where->off & ~IORING_ZCRX_AREA_MASK, len = (uint64_t)cqe->res;

	r->cqes += r->bytes >= r->skip;
	r->bytes += len;
	if (len > r->largest)
		r->largest = len;
	/* As a direct write wants fragments: relative to the stream, all starts agree modulo 4. */
	if ((off - c->received) % 4)
		r->not_multiple_of_4++;
	if (!pattern_equal(r->area + off, c->phase + c->received, len))
		r->bad++;
	c->received += len;
	if (r->held_count == HELD_MAX)
		die("too many buffers held", ENOBUFS);
	r->held[r->held_count++] = off;
}

static void receive_done(struct receiver *r, unsigned index, const struct io_uring_cqe *cqe)
{
	struct conn *c = &r->conns[index];

	if (cqe->res > 0)
		received(r, c, cqe);
	if (cqe->flags & IORING_CQE_F_MORE)
		return;
	if (cqe->res == -ENOMEM) {
		r->no_memory++;
		refill(r);
		control(r, ZCRX_CTRL_FLUSH_RQ);
	} else if (cqe->res == -ENOSPC) {
		r->no_space++;
	} else if (cqe->res <= 0) {
		if (cqe->res < 0)
			r->error = -cqe->res;
		c->done = true;
		r->done_count++;
		close(c->fd);
		return;
	}
	r->rearm++;
	receive_arm(r, index);
}

static void completions(struct receiver *r)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&r->ring, head, cqe) {
		if (cqe->user_data == ACCEPT_DATA) {
			accepted(r, cqe->res);
		} else if (cqe->user_data == EVENT_DATA) {
			r->alloc_fail++;
			r->holding = false;
		} else {
			receive_done(r, (unsigned)cqe->user_data, cqe);
		}
		count++;
	}
	io_uring_cq_advance(&r->ring, count);
	if (!r->holding)
		refill(r);
}

static void receive_all(struct receiver *r, const struct options *o)
{
	struct __kernel_timespec patience = { .tv_sec = (long long)o->wait };
	struct io_uring_cqe *cqe;

	while (r->done_count < o->conns) {
		int rc = io_uring_submit_and_wait_timeout(&r->ring, &cqe, 1, &patience, NULL);

		if (rc == -ETIME) {
			r->error = ETIME;
			return;
		}
		if (rc < 0 && rc != -EINTR)
			die("io_uring_submit_and_wait", -rc);
		completions(r);
	}
}

static int recv_main(int argc, char **argv)
{
	struct io_uring_params params = { .flags = IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER |
						   IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
					  .cq_entries = 4096 };
	static struct receiver r;
	struct options o;
	struct io_uring_sqe *sqe;
	uint64_t short_conns = 0;
	int rc, fd;

	options_read(&o, argc, argv, 6);
	r.bytes_each = strtoull(argv[5], NULL, 0);
	r.holding = o.hold;
	r.skip = o.skip;
	r.held = calloc(HELD_MAX, sizeof(*r.held));
	pattern_make();
	rc = io_uring_queue_init_params(256, &r.ring, &params);
	if (rc < 0 || !r.held)
		die("set-up", rc ? -rc : ENOMEM);
	zcrx_register(&r, &o, argv[2], (unsigned)atoi(argv[3]));
	fd = listen_on((uint16_t)atoi(argv[4]), (int)o.rcvbuf);
	sqe = io_uring_get_sqe(&r.ring);
	io_uring_prep_multishot_accept(sqe, fd, NULL, NULL, 0);
	sqe->user_data = ACCEPT_DATA;
	io_uring_submit(&r.ring);
	printf("listening\n");
	fflush(stdout);
	receive_all(&r, &o);
	for (unsigned i = 0; i < o.conns; i++)
		short_conns += r.conns[i].received != r.bytes_each;
	printf("result bytes=%lu cqes=%lu largest=%lu bad=%lu short=%lu copy_count=%lu copy_bytes=%lu rearm=%lu no_memory=%lu "
	       "no_space=%lu alloc_fail=%lu misaligned=%lu error=%s\n",
	       r.bytes, r.cqes, r.largest, r.bad, short_conns, r.stats->copy_count, r.stats->copy_bytes, r.rearm, r.no_memory,
	       r.no_space, r.alloc_fail, r.not_multiple_of_4, r.error ? strerrorname_np(r.error) : "none");
	return r.bad || short_conns;
}

static int connect_to(const char *address, uint16_t port)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
	int fd;

	if (!is_v4 && inet_pton(AF_INET6, address, &v6.sin6_addr) != 1)
		die(address, EINVAL);
	fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6, is_v4 ? sizeof(v4) : sizeof(v6)))
		die("connect", errno);
	return fd;
}

/* One call for up to SEND_PIECES times the pattern's length: the last packet of a call is a short one, MSG_MORE or not. */
static uint64_t send_pattern(int fd, uint64_t offset, uint64_t len, int flags)
{
	struct iovec pieces[SEND_PIECES];
	struct msghdr msg = { .msg_iov = pieces };
	ssize_t rc;

	while (len && msg.msg_iovlen < SEND_PIECES) {
		uint64_t n = len < PATTERN_LEN ? len : PATTERN_LEN;

		pieces[msg.msg_iovlen++] = (struct iovec){ pattern + offset % PATTERN_LEN, n };
		offset += n;
		len -= n;
	}
	rc = sendmsg(fd, &msg, MSG_NOSIGNAL | flags);
	if (rc < 0)
		die("send", errno);
	return (uint64_t)rc;
}

static int send_one(const char *address, uint16_t port, uint64_t bytes, uint64_t chunk, bool flush)
{
	int fd = connect_to(address, port);
	struct sockaddr_in6 own;
	socklen_t len = sizeof(own);
	uint64_t sent = 0, phase;

	if (getsockname(fd, (struct sockaddr *)&own, &len))
		die("getsockname", errno);
	phase = phase_of_port(ntohs(own.sin6_port));
	while (sent < bytes) {
		uint64_t n = bytes - sent < chunk ? bytes - sent : chunk;
		/* More follows: a segment is not sent short because one call's data ended in it. */
		int more = sent + n < bytes && !flush ? MSG_MORE : 0;

		sent += send_pattern(fd, phase + sent, n, more);
	}
	close(fd);
	return 0;
}

static int send_main(int argc, char **argv)
{
	struct options o;
	int status, failed = 0;

	options_read(&o, argc, argv, 5);
	pattern_make();
	for (uint64_t i = 0; i < o.conns; i++)
		if (!fork())
			_exit(send_one(argv[2], (uint16_t)atoi(argv[3]), strtoull(argv[4], NULL, 0), o.chunk, o.flush));
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}

static int plain_main(char **argv)
{
	int listener = listen_on((uint16_t)atoi(argv[2]), 0), fd;
	char byte;

	printf("listening\n");
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		die("accept", errno);
	if (recv(fd, &byte, 1, 0) < 0)
		printf("recv %s\n", strerrorname_np(errno));
	else
		printf("recv ok\n");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 5 && !strcmp(argv[1], "recv"))
		return recv_main(argc, argv);
	if (argc > 4 && !strcmp(argv[1], "send"))
		return send_main(argc, argv);
	if (argc > 2 && !strcmp(argv[1], "plain"))
		return plain_main(argv);
	fprintf(stderr, "see the head of zcrx_stream.c\n");
	return 2;
}
