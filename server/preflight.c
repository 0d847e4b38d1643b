/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preflight: one function per requirement. Each reports through report(); none stops the others, so that a person sees everything
 * that is wrong at once.
 */
#include "server/store_conf.h"
#include "server/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/uring.h"
#include "server/auth_keys.h"
#include "server/lock.h"
#include "server/probe.h"
#include "server/receive.h"
#include "server/thread.h"
#include "server/tls.h"
#include "storage/store.h"

enum verdict { PREFLIGHT_OK, PREFLIGHT_WARN, PREFLIGHT_FAIL };

struct preflight {
    const struct conf *conf;
    FILE *to;
    bool node_is_running; /* ports and devices are then held by it, which is fine */
    unsigned counts[3];
};

__attribute__((format(printf, 4, 5))) static void report(struct preflight *preflight, enum verdict verdict,
                                                         const char *what, const char *format, ...)
{
    static const char *const words[] = {"ok", "warn", "fail"};
    va_list args;
    va_start(args, format);
    fprintf(preflight->to, "%-4s  %-18s  ", words[verdict], what);
    vfprintf(preflight->to, format, args);
    fputc('\n', preflight->to);
    va_end(args);
    preflight->counts[verdict]++;
}

/* ---- kernel ------------------------------------------------------------------------------------------------------------- */

#define KERNEL(major, minor) ((major)*1000U + (minor))

static unsigned kernel_version(struct utsname *name)
{
    unsigned major = 0;
    unsigned minor = 0;
    if (uname(name) != 0 || sscanf(name->release, "%u.%u", &major, &minor) != 2) {
        return 0;
    }
    return KERNEL(major, minor);
}

static void check_kernel(struct preflight *preflight)
{
    struct utsname name;
    unsigned version = kernel_version(&name);
    if (version < KERNEL(6, 1)) {
        report(preflight, PREFLIGHT_FAIL, "kernel", "%s; Linux 6.1 or newer is needed", name.release);
    } else if (version < KERNEL(6, 18)) {
        report(preflight, PREFLIGHT_WARN, "kernel",
               "%s; before 6.18 payload that is not block aligned is copied once (reason kernel)",
               name.release);
    } else {
        report(preflight, PREFLIGHT_OK, "kernel", "%s", name.release);
    }
}

static void check_uring(struct preflight *preflight)
{
    struct uring_options options = {
        .sq_entries = 8, .cq_entries = 16, .want_cqe32 = true, .buffers_max = 1, .files_max = 1};
    struct uring uring;
    struct err err = {""};
    if (uring_open(&uring, &options, &err) != 0) {
        report(preflight, PREFLIGHT_FAIL, "io_uring", "%s", err.text);
        return;
    }
    bool is_deferred = (uring.setup_flags & IORING_SETUP_DEFER_TASKRUN) != 0;
    report(preflight, is_deferred ? PREFLIGHT_OK : PREFLIGHT_WARN, "io_uring", "opens%s",
           is_deferred ? ", with deferred task work and 32-byte completions"
                       : "; this kernel has no deferred task work, which costs CPU");
    uring_close(&uring);
}

/* ---- limits --------------------------------------------------------------------------------------------------------------- */

static void check_memlock(struct preflight *preflight)
{
    char need_text[BYTES_SIZE_TEXT_MAX];
    char have_text[BYTES_SIZE_TEXT_MAX];
    uint64_t need = conf_memory_registered(preflight->conf) * preflight->conf->node.workers;
    struct rlimit limit = {0, 0};
    bytes_format_size(need, need_text);
    if (probe_has_capability(CAP_IPC_LOCK)) {
        report(preflight, PREFLIGHT_OK, "locked memory", "%s needed; CAP_IPC_LOCK lifts the limit",
               need_text);
        return;
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        report(preflight, PREFLIGHT_WARN, "locked memory", "%s needed; the limit cannot be read: %s",
               need_text, err_text(-errno));
    } else if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < need) {
        report(preflight, PREFLIGHT_FAIL, "locked memory",
               "%s needed, %s allowed; raise it with ulimit -l, LimitMEMLOCK= in the unit, or CAP_IPC_LOCK",
               need_text, bytes_format_size(limit.rlim_cur, have_text));
    } else {
        report(preflight, PREFLIGHT_OK, "locked memory", "%s needed, %s allowed", need_text,
               limit.rlim_cur == RLIM_INFINITY ? "any amount" : bytes_format_size(limit.rlim_cur, have_text));
    }
}

void preflight_raise_files(void)
{
    struct rlimit limit = {0, 0};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        /* Refused, it stays as it was, and "check" says what is missing. */
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void check_files(struct preflight *preflight)
{
    struct rlimit limit = {0, 0};
    uint64_t need = 64 + preflight->conf->store.device_count * 2ULL;
    for (uint32_t i = 0; i < preflight->conf->listener_count; i++) {
        need +=
            (uint64_t)preflight->conf->listeners[i].limits.connections_max * preflight->conf->node.workers;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        report(preflight, PREFLIGHT_WARN, "open files", "the limit cannot be read: %s", err_text(-errno));
    } else if (limit.rlim_cur < THREAD_FILES) {
        report(preflight, PREFLIGHT_FAIL, "open files",
               "%u for a worker's ring, the limit is %" PRIu64
               "; raise it with ulimit -Hn or LimitNOFILE= in the unit",
               THREAD_FILES, (uint64_t)limit.rlim_cur);
    } else if (limit.rlim_cur < need) {
        report(preflight, PREFLIGHT_WARN, "open files",
               "%" PRIu64 " for every connection allowed by connections_max, the limit is %" PRIu64
               "; raise it with ulimit -Hn or LimitNOFILE= in the "
               "unit, or fewer connections are taken",
               need, (uint64_t)limit.rlim_cur);
    } else {
        report(preflight, PREFLIGHT_OK, "open files", "%" PRIu64 " needed, %" PRIu64 " allowed", need,
               (uint64_t)limit.rlim_cur);
    }
}

/* ---- memory --------------------------------------------------------------------------------------------------------------- */

/* A line of /proc/meminfo in bytes; 0 when it is not there. */
static uint64_t meminfo_read(const char *key)
{
    char line[256];
    uint64_t value = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return 0;
    }
    while (value == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtoull(line + strlen(key), NULL, 10) * KIB;
        }
    }
    fclose(file);
    return value;
}

static void check_memory(struct preflight *preflight)
{
    const struct conf *conf = preflight->conf;
    char text[5][BYTES_SIZE_TEXT_MAX];
    uint64_t each = store_upload_memory(conf->node.staging_size, (uint32_t)conf->store.write_unit);
    uint32_t uploads = store_conf_puts_max(conf);
    uint64_t worker = conf_memory_worker(conf) + uploads * each;
    uint64_t total = worker * conf->node.workers;
    uint64_t available = meminfo_read("MemAvailable:");
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        const struct conf_listener *listener = &conf->listeners[i];
        report(preflight, PREFLIGHT_OK, "memory",
               "listener %s: area %s + tables of its buffers %s + %u connections x %s = %s per worker",
               listener->name, bytes_format_size(listener->rx_area_size, text[0]),
               bytes_format_size(bytes_round_up(conf_memory_buffers(listener), KIB), text[3]),
               listener->limits.connections_max, bytes_format_size(conf_memory_connection(listener), text[1]),
               bytes_format_size(bytes_round_up(conf_memory_listener(listener), KIB), text[2]));
    }
    report(preflight, PREFLIGHT_OK, "memory", "store: %u uploads x %s = %s per worker", uploads,
           bytes_format_size(bytes_round_up(each, KIB), text[0]),
           bytes_format_size(bytes_round_up(uploads * each, MIB), text[1]));
    report(preflight, available > total ? PREFLIGHT_OK : PREFLIGHT_FAIL, "memory",
           "staging %s + compression %s (also reads what was stored by it) + listeners + store = %s per "
           "worker, x %u = %s; available %s%s",
           bytes_format_size(conf->node.staging_size, text[0]),
           bytes_format_size(bytes_round_up(conf_memory_compression(conf), MIB), text[4]),
           bytes_format_size(bytes_round_up(worker, MIB), text[1]), conf->node.workers,
           bytes_format_size(bytes_round_up(total, MIB), text[2]),
           bytes_format_size(bytes_round_down(available, MIB), text[3]),
           available > total ? "" : "; lower rx_area_size, staging_size, connections_max or uploads_max");
}

static uint64_t hugepages_free(const char *size)
{
    char path[128];
    unsigned long long count = 0;
    snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%s/free_hugepages", size);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    if (fscanf(file, "%llu", &count) != 1) {
        count = 0;
    }
    fclose(file);
    return count;
}

static uint64_t hugepages_need(const struct conf *conf, uint64_t page)
{
    return bytes_round_up(conf_memory_registered(conf), page) / page * conf->node.workers;
}

static void check_hugepages_of(struct preflight *preflight, uint64_t page, const char *size, const char *text)
{
    uint64_t need = hugepages_need(preflight->conf, page);
    uint64_t have = hugepages_free(size);
    if (have >= need || preflight->node_is_running) {
        report(preflight, PREFLIGHT_OK, "huge pages", "%" PRIu64 " of %s needed, %" PRIu64 " free", need,
               text, have);
    } else {
        report(preflight, PREFLIGHT_FAIL, "huge pages",
               "%" PRIu64 " of %s needed, %" PRIu64 " free; reserve them: echo %" PRIu64
               " > /sys/kernel/mm/hugepages/hugepages-%s/nr_hugepages",
               need, text, have, need, size);
    }
}

/* One mapping per worker holds staging and every area, so the largest page asked for by a listener is used for all of it. */
static void check_hugepages(struct preflight *preflight)
{
    const struct conf *conf = preflight->conf;
    enum arena_pages pages = ARENA_PAGES_NORMAL;
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        pages = conf->listeners[i].hugepages > pages ? conf->listeners[i].hugepages : pages;
    }
    uint64_t need = hugepages_need(conf, GIB);
    uint64_t have = hugepages_free("1048576kB");
    if (pages == ARENA_PAGES_1GIB && have < need && !preflight->node_is_running) {
        report(preflight, PREFLIGHT_WARN, "huge pages",
               "%" PRIu64 " of 1GiB needed, %" PRIu64 " free; pages of 2MiB are taken instead. They are "
               "reserved at boot: hugepagesz=1G hugepages=%" PRIu64,
               need, have, need);
        pages = ARENA_PAGES_2MIB;
    }
    if (pages == ARENA_PAGES_1GIB) {
        check_hugepages_of(preflight, GIB, "1048576kB", conf_hugepages_text(pages));
    } else if (pages == ARENA_PAGES_2MIB) {
        check_hugepages_of(preflight, 2 * MIB, "2048kB", conf_hugepages_text(pages));
    }
}

/* ---- data_dir --------------------------------------------------------------------------------------------------------------- */

static const char *network_fs_name(long type)
{
    switch (type) {
    case NFS_SUPER_MAGIC:
        return "NFS";
    case SMB_SUPER_MAGIC:
        return "SMB";
    case 0xff534d42: /* CIFS_MAGIC_NUMBER in older headers */
        return "CIFS";
    case FUSE_SUPER_MAGIC:
        return "FUSE";
    default:
        return NULL;
    }
}

/* A warning: a host that is ready for format has none yet. */
static void check_index(struct preflight *preflight, const char *data_dir)
{
    if (store_index_look(data_dir) != 0) {
        report(preflight, PREFLIGHT_WARN, "index",
               "%s holds none; run penstock format once, or restore data_dir if this store held objects",
               data_dir);
    }
}

static void check_data_dir(struct preflight *preflight)
{
    const char *path = preflight->conf->node.data_dir;
    struct statfs fs;
    if (access(path, R_OK | W_OK | X_OK) != 0 || statfs(path, &fs) != 0) {
        int rc = -errno;
        report(preflight, rc == -ENOENT ? PREFLIGHT_WARN : PREFLIGHT_FAIL, "data_dir", "%s: %s; %s", path,
               err_text(rc),
               rc == -ENOENT ? "penstock format makes it" : "let the user that runs the node own it");
        return;
    }
    uint64_t free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    char text[BYTES_SIZE_TEXT_MAX];
    const char *network = network_fs_name((long)fs.f_type);
    if (network != NULL) {
        report(preflight, PREFLIGHT_FAIL, "data_dir", "%s is on %s; the index needs a local file system",
               path, network);
    } else if (fs.f_type == TMPFS_MAGIC) {
        report(preflight, PREFLIGHT_WARN, "data_dir", "%s is on tmpfs; the index is gone after a reboot",
               path);
    } else if (free_bytes < 256 * MIB) {
        report(preflight, PREFLIGHT_WARN, "data_dir", "%s: only %s free for the index", path,
               bytes_format_size(free_bytes, text));
    } else {
        report(preflight, PREFLIGHT_OK, "data_dir", "%s: %s free", path,
               bytes_format_size(bytes_round_down(free_bytes, MIB), text));
    }
    check_index(preflight, path);
}

static void check_lock(struct preflight *preflight)
{
    pid_t holder = 0;
    /* A check by root must not leave a file that the node's user cannot open. */
    int rc = lock_look(preflight->conf->node.data_dir, &holder);
    if (rc == 0) {
        report(preflight, PREFLIGHT_OK, "lock", "no node is running");
    } else if (rc == -EBUSY) {
        preflight->node_is_running = true;
        report(preflight, PREFLIGHT_OK, "lock",
               "process %d is running this node; its ports and devices are taken for granted", (int)holder);
    }
    /* Other failures are data_dir's, and reported there. */
}

/* ---- devices ---------------------------------------------------------------------------------------------------------------- */

/* File systems on which O_DIRECT is accepted and yet copies, or which move data behind our back. */
static const char *indirect_fs_name(long type)
{
    switch (type) {
    case BTRFS_SUPER_MAGIC:
        return "btrfs (O_DIRECT is buffered while data checksums are on; use chattr +C on an empty file)";
    case 0x2fc12fc1:
        return "ZFS (O_DIRECT may be buffered)";
    case TMPFS_MAGIC:
        return "tmpfs (memory: nothing is durable)";
    case OVERLAYFS_SUPER_MAGIC:
        return "overlayfs (direct only as far as the file system below is)";
    default:
        return network_fs_name(type);
    }
}

#define PACKET_ALIGNMENT 4U /* bytes: of the payload of packets */

/* Only said to listeners whose path has no copy else. */
static void check_device_packets(struct preflight *preflight, const char *path, uint32_t alignment)
{
    for (uint32_t i = 0; i < preflight->conf->listener_count && alignment > PACKET_ALIGNMENT; i++) {
        struct receive_plan plan;
        struct err unused = {""};
        if (receive_choose(preflight->conf, i, &plan, &unused) == 0 &&
            (plan.ops == &rx_xdp_ops || plan.ops == &rx_zcrx_ops)) {
            report(preflight, PREFLIGHT_WARN, "device",
                   "%s: memory aligned to %u, and packets bring payload aligned to %u: what listener %s "
                   "takes by "
                   "%s is copied once on the way to it",
                   path, alignment, PACKET_ALIGNMENT, preflight->conf->listeners[i].name, plan.ops->path);
            return;
        }
    }
}

/* Alignment as the kernel reports it for O_DIRECT on this file. */
static void check_device_direct(struct preflight *preflight, const char *path, int fd)
{
    struct statx info;
    struct statfs fs;
    memset(&info, 0, sizeof(info));
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0 ||
        (info.stx_mask & STATX_DIOALIGN) == 0) {
        report(preflight, PREFLIGHT_WARN, "device",
               "%s: the kernel does not report the alignment of direct I/O here; it is found by trying",
               path);
    } else if (info.stx_dio_offset_align == 0) {
        report(preflight, PREFLIGHT_FAIL, "device", "%s: no direct I/O here; use a block device, ext4 or xfs",
               path);
    } else {
        report(preflight, PREFLIGHT_OK, "device", "%s: direct I/O, memory aligned to %u, offsets to %u", path,
               info.stx_dio_mem_align, info.stx_dio_offset_align);
        check_device_packets(preflight, path, info.stx_dio_mem_align);
    }
    if (fstatfs(fd, &fs) == 0 && indirect_fs_name((long)fs.f_type) != NULL) {
        report(preflight, PREFLIGHT_WARN, "device", "%s is on %s", path, indirect_fs_name((long)fs.f_type));
    }
}

static bool check_device_holds(struct preflight *preflight, const struct conf_device *device, uint64_t size)
{
    char text[2][BYTES_SIZE_TEXT_MAX];
    if (size < device->size) {
        report(preflight, PREFLIGHT_FAIL, "device",
               "%s has %s, store.devices asks for %s; lower size or run penstock format anew", device->path,
               bytes_format_size(size, text[0]), bytes_format_size(device->size, text[1]));
    }
    return size >= device->size;
}

/* A character device: an NVMe namespace by passthrough, or nothing for us. */
static void check_device_passthrough(struct preflight *preflight, const struct conf_device *device)
{
    struct store_device_probe found;
    struct err err = {""};
    if (store_device_probe(device->path, !preflight->node_is_running, &found, &err) < 0) {
        report(preflight, PREFLIGHT_FAIL, "device", "%s", err.text);
    } else if (check_device_holds(preflight, device, found.size)) {
        report(preflight, PREFLIGHT_OK, "device", "%s: %s; memory aligned to %u, offsets to %u", device->path,
               found.note, found.dma_alignment, found.lba_size);
        check_device_packets(preflight, device->path, found.dma_alignment);
    }
}

static void check_device_size(struct preflight *preflight, const struct conf_device *device, int fd,
                              const struct stat *info)
{
    uint64_t size = (uint64_t)info->st_size;
    if (S_ISBLK(info->st_mode) && ioctl(fd, BLKGETSIZE64, &size) != 0) {
        report(preflight, PREFLIGHT_FAIL, "device", "%s: its size cannot be read: %s", device->path,
               err_text(-errno));
        return;
    }
    if (!check_device_holds(preflight, device, size)) {
        return;
    }
    if (S_ISREG(info->st_mode) && (uint64_t)info->st_blocks * 512 < size - size / 100) {
        report(preflight, PREFLIGHT_WARN, "device",
               "%s is sparse: first writes are slow and may find the disk full; format fills it",
               device->path);
    }
}

/* Somebody else's claim (another store's, a mount) would stop serve; ours is given back at once. Other failures are reported above. */
static void check_device_claim(struct preflight *preflight, const char *path)
{
    struct store_device_probe found;
    struct err err = {""};
    int rc = preflight->node_is_running ? 0 : store_device_probe(path, true, &found, &err);
    if (rc == -EWOULDBLOCK || rc == -EBUSY) {
        report(preflight, PREFLIGHT_FAIL, "device", "%s", err.text);
    }
}

static void check_devices(struct preflight *preflight)
{
    for (uint32_t i = 0; i < preflight->conf->store.device_count; i++) {
        const struct conf_device *device = &preflight->conf->store.devices[i];
        struct stat info;
        struct err missing = {""};
        if (store_conf_device_missing(preflight->conf, i, false, &missing) != 0) {
            /* Before the first format a file that it will make is no fault. */
            bool is_to_come = device->size != 0 && store_index_look(preflight->conf->node.data_dir) != 0;
            report(preflight, is_to_come ? PREFLIGHT_WARN : PREFLIGHT_FAIL, "device",
                   is_to_come ? "%s: not there yet; penstock format makes this file" : "%s",
                   is_to_come ? device->path : missing.text);
            continue;
        }
        int fd = open(device->path, O_RDWR | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && errno == EINVAL) {
            fd = open(device->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        }
        if (fd < 0 || fstat(fd, &info) != 0) {
            int rc = -errno;
            report(preflight, PREFLIGHT_FAIL, "device", "%s: %s; %s", device->path, err_text(rc),
                   rc == -EACCES ? "add the node's user to group disk, or let it own the file"
                                 : "correct store.devices");
        } else if (S_ISCHR(info.st_mode)) {
            check_device_passthrough(preflight, device);
        } else if (!S_ISBLK(info.st_mode) && !S_ISREG(info.st_mode)) {
            report(preflight, PREFLIGHT_FAIL, "device",
                   "%s is neither a block device, an NVMe namespace (/dev/ngXnY) nor a file; correct "
                   "store.devices",
                   device->path);
        } else {
            check_device_direct(preflight, device->path, fd);
            check_device_size(preflight, device, fd, &info);
            check_device_claim(preflight, device->path);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
}

/* ---- addresses -------------------------------------------------------------------------------------------------------------- */

static void check_port(struct preflight *preflight, const char *what, const struct conf_address *address)
{
    if (preflight->node_is_running) {
        return;
    }
    int one = 1;
    int fd = socket(address->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (const struct sockaddr *)&address->addr, address->len) != 0) {
        int rc = -errno;
        const char *remedy = rc == -EADDRINUSE      ? "stop what holds the port (ss -ltnp), or choose another"
                             : rc == -EADDRNOTAVAIL ? "no interface has this address"
                             : rc == -EACCES        ? "ports below 1024 need CAP_NET_BIND_SERVICE"
                                                    : "choose another address";
        report(preflight, PREFLIGHT_FAIL, what, "%s: %s; %s", address->text, err_text(rc), remedy);
    } else {
        report(preflight, PREFLIGHT_OK, what, "%s can be bound", address->text);
    }
    if (fd >= 0) {
        close(fd);
    }
}

/* Read as serve reads them, so that check passes nothing at which serve would stop. */
static void check_credentials(struct preflight *preflight, const char *what, const char *path)
{
    struct auth_keys *keys = NULL;
    struct stat info;
    struct err err = {""};
    if (path[0] == '\0') {
        return;
    }
    if (geteuid() == 0 && stat(path, &info) == 0 && info.st_uid != 0) {
        report(preflight, PREFLIGHT_WARN, what,
               "credentials %s belong to user %u and were not read; run penstock check as the node's user",
               path, (unsigned)info.st_uid);
        return;
    }
    if (auth_keys_load(&keys, path, 1, &err) != 0) {
        report(preflight, PREFLIGHT_FAIL, what, "credentials %s", err.text);
        return;
    }
    size_t count = auth_keys_count(keys);
    report(preflight, count == 0 ? PREFLIGHT_WARN : PREFLIGHT_OK, what, "credentials %s: %zu keys", path,
           count);
    auth_keys_free(keys);
}

static void check_tls(struct preflight *preflight, const char *what, const struct conf_listener *listener)
{
    struct tls_certificate about;
    struct err err = {""};
    if (listener->tls.certificate[0] == '\0') {
        return;
    }
    if (tls_files_check(listener, &about, &err) < 0) {
        report(preflight, PREFLIGHT_FAIL, what, "tls: %s", err.text);
    } else {
        bool is_short = about.days_left < TLS_EXPIRY_WARN_DAYS;
        report(preflight, is_short ? PREFLIGHT_WARN : PREFLIGHT_OK, what,
               "tls: %s valid until %s (%d days)%s", about.subject, about.not_after, about.days_left,
               is_short ? "; renew it, then send SIGHUP to the node" : "");
    }
}

static void check_receive(struct preflight *preflight, const char *what, const struct conf *conf,
                          uint32_t index)
{
    struct receive_plan plan;
    struct err err = {""};
    if (receive_choose(conf, index, &plan, &err) == 0) {
        const char *mode = plan.mode != NULL ? plan.mode : "";
        report(preflight, plan.is_slower ? PREFLIGHT_WARN : PREFLIGHT_OK, what, "receive: %s%s%s (%s)%s",
               plan.ops->path, mode[0] != '\0' ? ", " : "", mode, plan.why,
               plan.is_slower ? "; the driver reports no zero-copy, so receive: auto would not take it" : "");
        if (plan.ops == &rx_xdp_ops && plan.queue_count < conf->node.workers) {
            report(preflight, PREFLIGHT_WARN, what,
                   "%u queues for %u workers: the last %u receive nothing of it; give the interface more "
                   "queues, "
                   "or set node.workers: %u",
                   plan.queue_count, conf->node.workers, conf->node.workers - plan.queue_count,
                   plan.queue_count);
        }
    } else {
        /* The line begins with the listener already. */
        size_t head = strlen(what) + strlen(": ");
        bool has_head = strncmp(err.text, what, strlen(what)) == 0 && strlen(err.text) > head;
        report(preflight, PREFLIGHT_FAIL, what, "%s", has_head ? err.text + head : err.text);
    }
}

/* A worker that cannot be pinned runs, and where it runs is then the scheduler's choice: slower, not broken. */
static void check_cpus(struct preflight *preflight, const char *what, const struct conf_numbers *cpus)
{
    for (uint32_t i = 0; i < cpus->count; i++) {
        char path[64];
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u", cpus->values[i]);
        if (access(path, F_OK) != 0) {
            report(
                preflight, PREFLIGHT_WARN, what,
                "cpus: %u is no CPU of this host, so its worker would not be pinned; lscpu lists them, and "
                "auto takes those of the interface's NUMA node",
                cpus->values[i]);
            return;
        }
    }
}

/* receive: auto goes on without the interface, and with a misspelt one nobody would know why. */
static void check_interface(struct preflight *preflight, const char *what, const char *interface)
{
    if (interface[0] != '\0' && if_nametoindex(interface) == 0) {
        report(preflight, PREFLIGHT_WARN, what, "interface: %s does not exist here; ip link lists what does",
               interface);
    }
}

static void check_listener(struct preflight *preflight, const struct conf *conf, uint32_t index)
{
    const struct conf_listener *listener = &conf->listeners[index];
    char what[CONF_NAME_MAX + 16];
    snprintf(what, sizeof(what), "listener %s", listener->name);
    check_port(preflight, what, &listener->address);
    check_receive(preflight, what, conf, index);
    if (listener->receive == CONF_RECEIVE_AUTO || listener->receive == CONF_RECEIVE_SOCKET) {
        check_interface(preflight, what, listener->interface); /* The other paths have failed for it above. */
    }
    check_cpus(preflight, what, &listener->cpus);
    check_credentials(preflight, what, listener->credentials);
    check_tls(preflight, what, listener);
    if (listener->receive == CONF_RECEIVE_ZCRX && !probe_has_capability(CAP_NET_ADMIN)) {
        report(preflight, PREFLIGHT_FAIL, what, "receive: %s needs CAP_NET_ADMIN",
               conf_receive_text(listener->receive));
    }
    if (listener->allow_remote_anonymous) {
        report(preflight, PREFLIGHT_WARN, what,
               "%s takes anonymous requests from the network, as allow_remote_anonymous says",
               listener->address.text);
    }
}

/* ---- all -------------------------------------------------------------------------------------------------------------------- */

bool preflight_run(const struct conf *conf, FILE *to)
{
    struct preflight preflight = {.conf = conf, .to = to};
    report(&preflight, PREFLIGHT_OK, "configuration", "%s", conf->path);
    check_kernel(&preflight);
    check_uring(&preflight);
    check_memlock(&preflight);
    preflight_raise_files();
    check_files(&preflight);
    check_data_dir(&preflight);
    check_lock(&preflight);
    check_memory(&preflight);
    check_hugepages(&preflight);
    check_devices(&preflight);
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        check_listener(&preflight, conf, i);
    }
    if (conf->admin.address.len != 0) {
        check_port(&preflight, "admin", &conf->admin.address);
    }
    fprintf(to, "%u ok, %u warnings, %u failures\n", preflight.counts[PREFLIGHT_OK],
            preflight.counts[PREFLIGHT_WARN], preflight.counts[PREFLIGHT_FAIL]);
    return preflight.counts[PREFLIGHT_FAIL] == 0;
}
