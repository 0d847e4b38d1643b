/* SPDX-License-Identifier: Apache-2.0 */
/* vfs_sim: see vfs_sim.h. Single-threaded; several connections are fine, their locks are kept like a file system's. */
#include "vfs_sim.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

#define FILES_MAX 16U
#define SECTOR 512U
#define SHM_LOCKS 8U
#define SHM_REGIONS 64U

/* A change that is not durable. */
struct change {
    struct change *next;
    bool is_truncate;
    uint64_t offset; /* or the new size */
    uint32_t len;
    uint8_t data[];
};

struct image {
    uint8_t *data;
    uint64_t size;
    uint64_t capacity;
};

struct file {
    char name[256];
    bool exists; /* as the process sees it */
    bool exists_durably;
    struct image now;
    struct image durable;
    struct change *changes, **changes_end;
    uint32_t handles;
    /* locks on the file */
    uint32_t shared;
    const void *reserved, *exclusive; /* the handle that holds it */
    /* shared memory */
    void *regions[SHM_REGIONS];
    uint32_t shm_shared[SHM_LOCKS];
    const void *shm_exclusive[SHM_LOCKS];
};

struct handle {
    sqlite3_file base; /* must be first */
    struct vfs_sim *sim;
    struct file *file;
    int lock;
    uint8_t shm_held[SHM_LOCKS]; /* 0 none, 1 shared, 2 exclusive */
    bool delete_on_close;
};

struct vfs_sim {
    sqlite3_vfs vfs; /* must be first */
    struct file files[FILES_MAX];
    bool is_dead;
    uint64_t syncs;
    uint64_t die_at_sync; /* value of syncs at which it dies; 0: never */
    uint32_t fail_ops;
    uint64_t fail_nth, seen, fired;
    bool fail_on;
    int fail_code;
    struct rng noise;
};

/* ---- images ---------------------------------------------------------------------------------------------------------- */

static void image_reserve(struct image *image, uint64_t size)
{
    if (size <= image->capacity) {
        return;
    }
    uint64_t capacity = image->capacity > 0 ? image->capacity : 65536;
    while (capacity < size) {
        capacity *= 2;
    }
    image->data = realloc(image->data, capacity);
    CHECK(image->data != NULL);
    image->capacity = capacity;
}

static void image_write(struct image *image, uint64_t offset, const void *data, uint64_t len)
{
    image_reserve(image, offset + len);
    if (offset > image->size) {
        memset(image->data + image->size, 0, offset - image->size);
    }
    memcpy(image->data + offset, data, len);
    if (offset + len > image->size) {
        image->size = offset + len;
    }
}

static void image_truncate(struct image *image, uint64_t size)
{
    image_reserve(image, size);
    if (size > image->size) {
        memset(image->data + image->size, 0, size - image->size);
    }
    image->size = size;
}

static void image_copy(struct image *to, const struct image *from)
{
    to->size = 0;
    if (from->size > 0) {
        image_write(to, 0, from->data, from->size);
    }
}

/* ---- changes ---------------------------------------------------------------------------------------------------------- */

static void change_add(struct file *file, bool is_truncate, uint64_t offset, const void *data, uint32_t len)
{
    struct change *change = malloc(sizeof(*change) + len);
    CHECK(change != NULL);
    change->next = NULL;
    change->is_truncate = is_truncate;
    change->offset = offset;
    change->len = len;
    if (len > 0) {
        memcpy(change->data, data, len);
    }
    *file->changes_end = change;
    file->changes_end = &change->next;
}

static void change_apply(struct image *image, const struct change *change)
{
    if (change->is_truncate) {
        image_truncate(image, change->offset);
    } else {
        image_write(image, change->offset, change->data, change->len);
    }
}

static void changes_clear(struct file *file)
{
    while (file->changes != NULL) {
        struct change *next = file->changes->next;
        free(file->changes);
        file->changes = next;
    }
    file->changes_end = &file->changes;
}

/* A write that was under way: each sector of it on its own. */
static void change_tear(struct image *image, const struct change *change, struct rng *rng)
{
    for (uint64_t at = 0; at < change->len;) {
        uint64_t to_sector = SECTOR - (change->offset + at) % SECTOR;
        uint64_t len = to_sector < change->len - at ? to_sector : change->len - at;
        uint64_t what = rng_below(rng, 3);
        if (what == 0) {
            image_write(image, change->offset + at, change->data + at, len);
        } else if (what == 1) {
            for (uint64_t i = 0; i < len; i++) {
                uint8_t garbage = (uint8_t)rng_u64(rng);
                image_write(image, change->offset + at + i, &garbage, 1);
            }
        }
        at += len;
    }
}

static void file_cut(struct file *file, struct rng *rng)
{
    for (struct change *change = file->changes; change != NULL; change = change->next) {
        uint64_t what = rng_below(rng, 4);
        if (what < 2) {
            change_apply(&file->durable, change);
        } else if (what == 2 && !change->is_truncate) {
            change_tear(&file->durable, change, rng);
        }
    }
    changes_clear(file);
    if (file->exists != file->exists_durably && rng_chance(rng, 1, 2)) {
        file->exists_durably = file->exists;
    }
    file->exists = file->exists_durably;
    if (!file->exists) {
        file->durable.size = 0;
    }
    image_copy(&file->now, &file->durable);
}

/* ---- faults -------------------------------------------------------------------------------------------------------------- */

/* 0, or the code that this operation answers. */
static int fault(struct vfs_sim *sim, enum vfs_sim_op op)
{
    if (sim->is_dead) {
        return SQLITE_IOERR;
    }
    if ((sim->fail_ops & (uint32_t)op) == 0) {
        return 0;
    }
    sim->seen++;
    bool hit =
        sim->fail_nth != 0 && (sim->seen == sim->fail_nth || (sim->fail_on && sim->seen > sim->fail_nth));
    sim->fired += hit ? 1 : 0;
    return hit ? sim->fail_code : 0;
}

static struct file *file_find(struct vfs_sim *sim, const char *name)
{
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        if (strcmp(sim->files[i].name, name) == 0) {
            return &sim->files[i];
        }
    }
    return NULL;
}

/* ---- file methods ---------------------------------------------------------------------------------------------------------- */

static int file_close(sqlite3_file *base)
{
    struct handle *handle = (struct handle *)base;
    struct file *file = handle->file;
    CHECK(file->handles > 0);
    file->handles--;
    if (handle->delete_on_close && !handle->sim->is_dead) {
        file->exists = false;
        file->now.size = 0;
    }
    if (handle->lock >= SQLITE_LOCK_SHARED && file->shared > 0) {
        file->shared--;
    }
    file->reserved = file->reserved == handle ? NULL : file->reserved;
    file->exclusive = file->exclusive == handle ? NULL : file->exclusive;
    base->pMethods = NULL;
    return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *to, int len, sqlite3_int64 offset)
{
    struct handle *handle = (struct handle *)base;
    int rc = fault(handle->sim, VFS_SIM_READ);
    if (rc != 0) {
        return rc;
    }
    const struct image *image = &handle->file->now;
    uint64_t at = (uint64_t)offset, want = (uint64_t)len;
    uint64_t have = at < image->size ? image->size - at : 0;
    have = have < want ? have : want;
    if (have > 0) {
        memcpy(to, image->data + at, have);
    }
    memset((uint8_t *)to + have, 0, want - have);
    return have == want ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *from, int len, sqlite3_int64 offset)
{
    struct handle *handle = (struct handle *)base;
    int rc = fault(handle->sim, VFS_SIM_WRITE);
    if (rc != 0) {
        return rc;
    }
    image_write(&handle->file->now, (uint64_t)offset, from, (uint64_t)len);
    change_add(handle->file, false, (uint64_t)offset, from, (uint32_t)len);
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct handle *handle = (struct handle *)base;
    int rc = fault(handle->sim, VFS_SIM_TRUNCATE);
    if (rc != 0) {
        return rc;
    }
    image_truncate(&handle->file->now, (uint64_t)size);
    change_add(handle->file, true, (uint64_t)size, NULL, 0);
    return SQLITE_OK;
}

static int file_sync(sqlite3_file *base, int flags)
{
    (void)flags; /* data or full: both make everything durable here */
    struct handle *handle = (struct handle *)base;
    struct vfs_sim *sim = handle->sim;
    if (!sim->is_dead && ++sim->syncs == sim->die_at_sync) {
        sim->is_dead = true;
    }
    int rc = fault(sim, VFS_SIM_SYNC);
    if (rc != 0) {
        return rc;
    }
    for (struct change *change = handle->file->changes; change != NULL; change = change->next) {
        change_apply(&handle->file->durable, change);
    }
    changes_clear(handle->file);
    handle->file->exists_durably = handle->file->exists;
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size)
{
    struct handle *handle = (struct handle *)base;
    if (handle->sim->is_dead) {
        return SQLITE_IOERR_FSTAT;
    }
    *size = (sqlite3_int64)handle->file->now.size;
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *base, int level)
{
    struct handle *handle = (struct handle *)base;
    struct file *file = handle->file;
    if (level <= handle->lock) {
        return SQLITE_OK;
    }
    bool others_exclude = file->exclusive != NULL && file->exclusive != handle;
    if (handle->lock < SQLITE_LOCK_SHARED) {
        if (others_exclude) {
            return SQLITE_BUSY;
        }
        file->shared++;
        handle->lock = SQLITE_LOCK_SHARED;
    }
    if (level >= SQLITE_LOCK_RESERVED) {
        if (others_exclude || (file->reserved != NULL && file->reserved != handle)) {
            return SQLITE_BUSY;
        }
        file->reserved = handle;
        handle->lock = SQLITE_LOCK_RESERVED;
    }
    if (level == SQLITE_LOCK_EXCLUSIVE) {
        if (file->shared > 1) {
            return SQLITE_BUSY;
        }
        file->exclusive = handle;
        handle->lock = SQLITE_LOCK_EXCLUSIVE;
    }
    return SQLITE_OK;
}

static int file_unlock(sqlite3_file *base, int level)
{
    struct handle *handle = (struct handle *)base;
    struct file *file = handle->file;
    if (level >= handle->lock) {
        return SQLITE_OK;
    }
    file->reserved = file->reserved == handle ? NULL : file->reserved;
    file->exclusive = file->exclusive == handle ? NULL : file->exclusive;
    if (level == SQLITE_LOCK_NONE) {
        file->shared--;
    }
    handle->lock = level;
    return SQLITE_OK;
}

static int file_check_reserved(sqlite3_file *base, int *out)
{
    *out = ((struct handle *)base)->file->reserved != NULL;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int op, void *arg)
{
    (void)base; /* no control is known here */
    (void)op;
    (void)arg;
    return SQLITE_NOTFOUND;
}

static int file_sector_size(sqlite3_file *base)
{
    (void)base; /* the same for all */
    return (int)SECTOR;
}

static int file_characteristics(sqlite3_file *base)
{
    (void)base; /* the same for all */
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

/* ---- shared memory ---------------------------------------------------------------------------------------------------------- */

static int shm_map(sqlite3_file *base, int region, int size, int extend, void volatile **out)
{
    struct file *file = ((struct handle *)base)->file;
    *out = NULL;
    if (region >= (int)SHM_REGIONS) {
        return SQLITE_NOMEM;
    }
    if (file->regions[region] == NULL && extend != 0) {
        file->regions[region] = calloc(1, (size_t)size);
    }
    *out = file->regions[region];
    return SQLITE_OK;
}

static bool shm_may_lock(const struct handle *handle, uint32_t i, bool exclusive)
{
    const struct file *file = handle->file;
    uint32_t others_shared = file->shm_shared[i] - (handle->shm_held[i] == 1 ? 1U : 0U);
    bool others_exclusive = file->shm_exclusive[i] != NULL && file->shm_exclusive[i] != handle;
    return !others_exclusive && !(exclusive && others_shared > 0);
}

static void shm_release(struct handle *handle, uint32_t i)
{
    struct file *file = handle->file;
    if (handle->shm_held[i] == 1) {
        file->shm_shared[i]--;
    } else if (handle->shm_held[i] == 2) {
        file->shm_exclusive[i] = NULL;
    }
    handle->shm_held[i] = 0;
}

static int shm_lock(sqlite3_file *base, int first, int n, int flags)
{
    struct handle *handle = (struct handle *)base;
    bool exclusive = (flags & SQLITE_SHM_EXCLUSIVE) != 0;
    uint32_t begin = (uint32_t)first, end = (uint32_t)(first + n);
    if ((flags & SQLITE_SHM_LOCK) != 0) {
        for (uint32_t i = begin; i < end; i++) {
            if (!shm_may_lock(handle, i, exclusive)) {
                return SQLITE_BUSY;
            }
        }
    }
    for (uint32_t i = begin; i < end; i++) {
        shm_release(handle, i);
        if ((flags & SQLITE_SHM_LOCK) != 0) {
            handle->shm_held[i] = exclusive ? 2 : 1;
            if (exclusive) {
                handle->file->shm_exclusive[i] = handle;
            } else {
                handle->file->shm_shared[i]++;
            }
        }
    }
    return SQLITE_OK;
}

static void shm_barrier(sqlite3_file *base)
{
    (void)base; /* one thread */
}

static int shm_unmap(sqlite3_file *base, int delete_flag)
{
    struct handle *handle = (struct handle *)base;
    for (uint32_t i = 0; i < SHM_LOCKS; i++) {
        shm_release(handle, i);
    }
    for (uint32_t i = 0; delete_flag != 0 && i < SHM_REGIONS; i++) {
        free(handle->file->regions[i]);
        handle->file->regions[i] = NULL;
    }
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_check_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
    .xShmMap = shm_map,
    .xShmLock = shm_lock,
    .xShmBarrier = shm_barrier,
    .xShmUnmap = shm_unmap,
};

/* ---- VFS methods ------------------------------------------------------------------------------------------------------------ */

static struct file *file_make(struct vfs_sim *sim, const char *name)
{
    struct file *file = file_find(sim, name);
    for (uint32_t i = 0; file == NULL && i < FILES_MAX; i++) {
        if (sim->files[i].name[0] == '\0') {
            file = &sim->files[i];
            CHECK(strlen(name) < sizeof(file->name));
            strcpy(file->name, name);
            file->changes_end = &file->changes;
        }
    }
    CHECK(file != NULL);
    return file;
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags, int *flags_out)
{
    struct vfs_sim *sim = (struct vfs_sim *)vfs;
    struct handle *handle = (struct handle *)base;
    memset(handle, 0, sizeof(*handle));
    int rc = fault(sim, VFS_SIM_OPEN);
    if (rc != 0) {
        return SQLITE_CANTOPEN;
    }
    struct file *file = file_find(sim, name != NULL ? name : "(temporary)");
    if ((file == NULL || !file->exists) && (flags & SQLITE_OPEN_CREATE) == 0) {
        return SQLITE_CANTOPEN;
    }
    file = file_make(sim, name != NULL ? name : "(temporary)");
    if (!file->exists) {
        file->exists = true;
        file->now.size = 0;
    }
    file->handles++;
    handle->sim = sim;
    handle->file = file;
    handle->delete_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
    handle->base.pMethods = &methods;
    if (flags_out != NULL) {
        *flags_out = flags;
    }
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync_dir)
{
    struct vfs_sim *sim = (struct vfs_sim *)vfs;
    struct file *file = file_find(sim, name);
    if (sim->is_dead) {
        return SQLITE_IOERR_DELETE;
    }
    if (file == NULL || !file->exists) {
        return SQLITE_IOERR_DELETE_NOENT;
    }
    file->exists = false;
    change_add(file, true, 0, NULL, 0);
    file->now.size = 0;
    if (sync_dir != 0) {
        file->exists_durably = false;
        changes_clear(file);
        file->durable.size = 0;
    }
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
    (void)flags; /* what exists may be read and written */
    const struct file *file = file_find((struct vfs_sim *)vfs, name);
    *out = file != NULL && file->exists;
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *name, int len, char *out)
{
    (void)vfs; /* names are whole already */
    sqlite3_snprintf(len, out, "%s", name);
    return SQLITE_OK;
}

static int vfs_randomness(sqlite3_vfs *vfs, int len, char *out)
{
    struct vfs_sim *sim = (struct vfs_sim *)vfs;
    for (int i = 0; i < len; i++) {
        out[i] = (char)rng_u64(&sim->noise);
    }
    return len;
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs; /* nobody else runs meanwhile */
    return us;
}

static int vfs_time(sqlite3_vfs *vfs, double *out)
{
    (void)vfs; /* always the same moment: runs replay */
    *out = 2461374.5;
    return SQLITE_OK;
}

static int vfs_last_error(sqlite3_vfs *vfs, int len, char *out)
{
    (void)vfs;
    (void)len;
    (void)out; /* no error has more to say */
    return 0;
}

struct vfs_sim *vfs_sim_open(const char *name)
{
    struct vfs_sim *sim = calloc(1, sizeof(*sim));
    CHECK(sim != NULL);
    rng_seed(&sim->noise, 99);
    sim->vfs = (sqlite3_vfs){
        .iVersion = 1,
        .szOsFile = sizeof(struct handle),
        .mxPathname = 255,
        .zName = name,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_last_error,
    };
    int rc = sqlite3_vfs_register(&sim->vfs, 0);
    CHECK(rc == SQLITE_OK);
    return sim;
}

static void file_free(struct file *file)
{
    CHECK(file->handles == 0);
    changes_clear(file);
    free(file->now.data);
    free(file->durable.data);
    for (uint32_t i = 0; i < SHM_REGIONS; i++) {
        free(file->regions[i]);
    }
}

void vfs_sim_close(struct vfs_sim *sim)
{
    sqlite3_vfs_unregister(&sim->vfs);
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        file_free(&sim->files[i]);
    }
    free(sim);
}

/* ---- control ---------------------------------------------------------------------------------------------------------------- */

void vfs_sim_fail(struct vfs_sim *sim, uint32_t ops, uint64_t nth, bool from_then_on, int sqlite_code)
{
    sim->fail_ops = ops;
    sim->fail_nth = nth;
    sim->fail_on = from_then_on;
    sim->fail_code = sqlite_code;
    sim->seen = 0;
    sim->fired = 0;
}

uint64_t vfs_sim_seen(const struct vfs_sim *sim)
{
    return sim->seen;
}

uint64_t vfs_sim_fired(const struct vfs_sim *sim)
{
    return sim->fired;
}

void vfs_sim_die_at_sync(struct vfs_sim *sim, uint64_t nth)
{
    sim->die_at_sync = nth > 0 ? sim->syncs + nth : 0;
}

uint64_t vfs_sim_syncs(const struct vfs_sim *sim)
{
    return sim->syncs;
}

bool vfs_sim_is_dead(const struct vfs_sim *sim)
{
    return sim->is_dead;
}

void vfs_sim_die(struct vfs_sim *sim)
{
    sim->is_dead = true;
}

/* What lives only in memory of the dead process. */
static void forget_process(struct vfs_sim *sim)
{
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        struct file *file = &sim->files[i];
        CHECK(file->handles == 0);
        file->shared = 0;
        file->reserved = file->exclusive = NULL;
        for (uint32_t k = 0; k < SHM_REGIONS; k++) {
            free(file->regions[k]);
            file->regions[k] = NULL;
        }
        memset(file->shm_shared, 0, sizeof(file->shm_shared));
        memset(file->shm_exclusive, 0, sizeof(file->shm_exclusive));
    }
    sim->is_dead = false;
    sim->die_at_sync = 0;
    vfs_sim_fail(sim, 0, 0, false, 0);
}

void vfs_sim_cut(struct vfs_sim *sim, uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    CHECK(sim->is_dead);
    forget_process(sim);
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        if (sim->files[i].name[0] != '\0') {
            file_cut(&sim->files[i], &rng);
        }
    }
}

void vfs_sim_revive(struct vfs_sim *sim)
{
    CHECK(sim->is_dead);
    forget_process(sim);
}

void vfs_sim_settle(struct vfs_sim *sim)
{
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        struct file *file = &sim->files[i];
        if (file->name[0] != '\0') {
            changes_clear(file);
            file->exists_durably = file->exists;
            image_copy(&file->durable, &file->now);
        }
    }
}

uint64_t vfs_sim_unsynced(const struct vfs_sim *sim)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        for (const struct change *change = sim->files[i].changes; change != NULL; change = change->next) {
            n++;
        }
    }
    return n;
}
