# SPDX-License-Identifier: Apache-2.0
"""Reads a disk's write log (dm-log-writes format) and makes the disk as a power cut may leave it.

The log holds every write, flush and discard in the order the disk saw them.  A cut after entry C leaves
what was durable: all writes before the last flush at or before C, and every FUA write up to C.  Each later
write is volatile: the seed decides whether it is kept, dropped or torn (some of its sectors kept).  Writes
are applied in log order, so a dropped one shows what was under it.

Invariants:
 1. The image depends only on log, cut, seed and the way the flushes are honoured.
 2. A write that a flush covers is always there whole, whatever the seed.
 3. Nothing after the cut is ever there.

Owns no process and no mount: it reads a file and writes a file.
"""
import mmap
import os
import random
import struct

MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")


class LogError(Exception):
    """The file is no write log or a part of it is missing."""


class Entry:
    """One log entry; `sector` and `count` in the log's sector size, `where` the offset of its data."""
    __slots__ = ("index", "sector", "count", "flags", "where")

    def __init__(self, index, sector, count, flags, where):
        self.index, self.sector, self.count, self.flags, self.where = index, sector, count, flags, where

    def is_write(self):
        return self.count > 0 and not self.flags & MARK


class Log:
    """A parsed write log, its data mapped from the file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < 512:
                raise LogError(f"{path}: too short for a write log")
            self.map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        magic, version, self.count, self.sector_size = SUPER.unpack_from(self.map)
        if magic != MAGIC or version != 1:
            raise LogError(f"{path}: no write log (magic {magic:#x}, version {version})")
        if self.sector_size not in (512, 1024, 2048, 4096):
            raise LogError(f"{path}: sector size {self.sector_size}")
        self.entries = self._parse(path)

    def _parse(self, path):
        entries, offset = [], self.sector_size
        for index in range(self.count):
            if offset + ENTRY.size > len(self.map):
                raise LogError(f"{path}: ends at entry {index} of {self.count}")
            sector, count, flags, data_len = ENTRY.unpack_from(self.map, offset)
            where = offset + self.sector_size
            stored = data_len if flags & MARK else 0 if flags & DISCARD else count * self.sector_size
            offset = where + -(-stored // self.sector_size) * self.sector_size
            if offset > len(self.map):
                raise LogError(f"{path}: data of entry {index} of {self.count} is cut off")
            entries.append(Entry(index, sector, count, flags, where))
        return entries

    def data(self, entry, first=0, count=None):
        """Bytes of sectors [first, first + count) of a write; zeros for a discard."""
        size = (entry.count - first if count is None else count) * self.sector_size
        if entry.flags & DISCARD:
            return bytes(size)
        start = entry.where + first * self.sector_size
        return self.map[start:start + size]

    def flushes(self):
        """Indices of the entries that carry a flush."""
        return [entry.index for entry in self.entries if entry.flags & FLUSH]

    def find(self, prefix):
        """(index, data) of every write whose data begins with `prefix`, in log order."""
        for entry in self.entries:
            if entry.is_write() and not entry.flags & DISCARD and \
                    self.map[entry.where:entry.where + len(prefix)] == prefix:
                yield entry.index, self.data(entry)


def boundary(log, cut):
    """Entries before this index are durable when the power goes after entry `cut`.

    A flush that carries data (REQ_PREFLUSH) covers what came before it, not its own data.
    """
    for index in range(min(cut, log.count - 1), -1, -1):
        if log.entries[index].flags & FLUSH:
            return index
    return 0


def apply(log, file, entry, ranges=None):
    """Writes an entry, or the sector ranges [(first, count)] of it, to the image."""
    for first, count in ranges if ranges is not None else [(0, entry.count)]:
        os.pwrite(file, log.data(entry, first, count), (entry.sector + first) * log.sector_size)


def apply_durable(log, file, start, end):
    """Brings an image that holds entries before `start` to hold those before `end`."""
    for entry in log.entries[start:end]:
        if entry.is_write():
            apply(log, file, entry)


def torn(count, unit, chance):
    """Sector ranges that survive of a torn write: a prefix, a suffix, or any subset of atomic units."""
    units = -(-count // unit)
    kind = chance.randrange(3)
    if kind == 0:
        kept = range(chance.randrange(units + 1))
    elif kind == 1:
        kept = range(chance.randrange(units + 1), units)
    else:
        kept = [number for number in range(units) if chance.random() < 0.5]
    return [(number * unit, min(unit, count - number * unit)) for number in kept]


def apply_volatile(log, file, start, cut, seed, unit_bytes=512, honest=True):
    """Applies entries [start, cut] as a cut may leave them; returns (kept, dropped, torn).

    A disk that is not honest forgets forced (FUA) writes like any other.

    The seed also chooses the mood of the cut: mostly kept, mostly dropped, or mixed, because a fair coin
    for each of 50 writes would never drop them all.
    """
    chance = random.Random(f"{seed}/{cut}")
    keep, tear = chance.choice([(0.0, 0.0), (0.1, 0.1), (0.4, 0.3), (0.8, 0.15), (0.95, 0.05)])
    unit = max(1, unit_bytes // log.sector_size)
    tally = [0, 0, 0]
    for entry in log.entries[start:cut + 1]:
        if not entry.is_write():
            continue
        draw = chance.random()
        if (honest and entry.flags & FUA) or draw < keep:
            apply(log, file, entry)
            tally[0] += 1
        elif draw < keep + tear:
            apply(log, file, entry, torn(entry.count, unit, chance))
            tally[2] += 1
        else:
            tally[1] += 1
    return tuple(tally)


def choose_cuts(log, number, seed, first=0):
    """`number` cut points in rising order, at or after entry `first`.

    Half lie just before a flush, where the most is volatile, the busier flushes more often; one sixth just after
    one; the rest anywhere.
    """
    chance = random.Random(f"cuts/{seed}")
    flushes = [index for index in log.flushes() if index > first]
    weights = [index - boundary(log, index - 1) for index in flushes]
    cuts = []
    for turn in range(number):
        if flushes and turn % 6 < 3:
            cuts.append(chance.choices(flushes, weights)[0] - 1)
        elif flushes and turn % 6 == 3:
            cuts.append(chance.choice(flushes))
        else:
            cuts.append(chance.randrange(first, log.count))
    return sorted(max(first, min(cut, log.count - 1)) for cut in cuts)
