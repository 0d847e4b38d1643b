# SPDX-License-Identifier: Apache-2.0
"""The power-cut replay on hand-made logs, and against a model that keeps one list per sector."""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "guest"))
import writelog  # noqa: E402
from writelog import DISCARD, FLUSH, FUA, MARK  # noqa: E402

SECTORS = 32


def letter(character, count=1):
    return character.encode() * 512 * count


class LogCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def log(self, *entries, count=None, magic=writelog.MAGIC, tail=0):
        """entries: (sector, data or sector count for a discard, flags)."""
        path = self.folder / "log"
        body = b""
        for sector, data, flags in entries:
            sectors = data if flags & DISCARD else len(data) // 512
            head = writelog.ENTRY.pack(sector, sectors if not flags & MARK else 0, flags,
                                       len(data) if flags & MARK else 0)
            payload = b"" if flags & DISCARD else data
            body += head.ljust(512, b"\0") + payload + b"\0" * (-len(payload) % 512)
        head = writelog.SUPER.pack(magic, 1, len(entries) if count is None else count, 512)
        content = head.ljust(512, b"\0") + body
        path.write_bytes(content[:len(content) - tail])
        return writelog.Log(path)

    def image(self, log, cut, seed="0", honour=True, unit=512):
        file = os.open(self.folder / "image", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.addCleanup(os.close, file)
        os.truncate(file, SECTORS * 512)
        start = writelog.boundary(log, cut) if honour else 0
        writelog.apply_durable(log, file, 0, start)
        tally = writelog.apply_volatile(log, file, start, cut, seed, unit, honour)
        data = os.pread(file, SECTORS * 512, 0)
        for number in range(SECTORS):
            sector = data[number * 512:][:512]
            self.assertEqual(len(set(sector)), 1, "a sector is never mixed")
        return "".join(chr(data[number * 512] or ord(".")) for number in range(SECTORS)), tally


class Format(LogCase):
    def test_another_file_is_refused(self):
        with self.assertRaisesRegex(writelog.LogError, "no write log"):
            self.log(magic=7)

    def test_a_log_cut_off_in_data_is_refused(self):
        with self.assertRaisesRegex(writelog.LogError, "data of entry 0 of 1 is cut off"):
            self.log((0, letter("a", 2), 0), tail=512)

    def test_a_log_that_promises_more_entries_is_refused(self):
        with self.assertRaisesRegex(writelog.LogError, "ends at entry 1 of 2"):
            self.log((0, letter("a"), 0), count=2)

    def test_entries_past_the_count_are_not_read(self):
        self.assertEqual(len(self.log((0, letter("a"), 0), (1, letter("b"), 0), count=1).entries), 1)

    def test_a_discard_has_no_data_and_a_mark_is_no_write(self):
        log = self.log((0, letter("a", 4), 0), (1, 2, DISCARD), (0, b"checkpoint", MARK), (5, letter("b"), 0))
        self.assertEqual(self.image(log, 3, honour=False, seed=self.keeping_seed(log, 3))[0][:6], "a..a.b")

    def keeping_seed(self, log, cut):
        """A seed whose cut keeps everything."""
        return next(seed for seed in range(1000) if self.image(log, cut, seed, honour=False)[1][1:] == (0, 0))

    def test_find_gives_marker_writes_in_log_order(self):
        log = self.log((9, b"MARK1".ljust(512, b"\0"), 0), (0, letter("a"), 0), (9, b"MARK2".ljust(512, b"\0"), 0))
        self.assertEqual([(i, d[:5]) for i, d in log.find(b"MARK")], [(0, b"MARK1"), (2, b"MARK2")])


class Cuts(LogCase):
    def test_flushed_writes_are_there_under_every_seed(self):
        log = self.log((0, letter("a", 3), 0), (3, letter("b"), 0), (0, b"", FLUSH), (1, letter("c"), 0))
        for seed in range(200):
            self.assertIn(self.image(log, 3, seed)[0][:4], ("aaab", "acab"))

    def test_volatile_writes_are_kept_dropped_and_torn_under_some_seed(self):
        log = self.log((0, letter("a", 2), 0))
        self.assertEqual({self.image(log, 0, seed)[0][:2] for seed in range(300)}, {"aa", "a.", ".a", ".."})

    def test_writes_are_never_torn_inside_the_atomic_unit(self):
        log = self.log((0, letter("a", 16), 0))
        seen = {self.image(log, 0, seed, unit=4096)[0][:16] for seed in range(300)}
        self.assertEqual(seen, {"a" * 16, "." * 16, "a" * 8 + "." * 8, "." * 8 + "a" * 8})

    def test_a_forced_write_is_there_without_a_flush(self):
        log = self.log((0, letter("a"), FUA), (1, letter("b"), 0))
        self.assertEqual({self.image(log, 1, seed)[0][:2] for seed in range(100)}, {"a.", "ab"})

    def test_a_flush_with_data_does_not_cover_its_own_data(self):
        log = self.log((0, letter("a"), 0), (1, letter("b"), FLUSH))
        self.assertEqual({self.image(log, 1, seed)[0][:2] for seed in range(100)}, {"a.", "ab"})

    def test_nothing_after_the_cut_is_there(self):
        log = self.log((0, letter("a"), 0), (1, letter("b"), FUA), (2, b"", FLUSH))
        self.assertEqual({self.image(log, 0, seed)[0][:2] for seed in range(100)}, {"a.", ".."})

    def test_a_disk_that_lies_may_lose_flushed_writes(self):
        log = self.log((0, letter("a"), 0), (0, b"", FLUSH), (1, letter("b"), FUA))
        self.assertEqual({self.image(log, 2, seed, honour=False)[0][:2] for seed in range(100)}, {"ab", "a.", ".b", ".."})

    def test_one_seed_gives_one_image(self):
        log = self.log(*[(n % 20, letter(chr(97 + n % 26), 1 + n % 4), 0) for n in range(60)])
        self.assertEqual(self.image(log, 50, "x"), self.image(log, 50, "x"))
        self.assertGreater(len({self.image(log, 50, seed)[0] for seed in range(20)}), 10)

    def test_cuts_lie_in_range_and_reach_flushes(self):
        log = self.log(*[(n, letter("a"), 0) if n % 5 else (0, b"", FLUSH) for n in range(25)])
        cuts = writelog.choose_cuts(log, 60, 1, first=7)
        self.assertEqual(cuts, sorted(cuts))
        self.assertTrue(all(7 <= cut < 25 for cut in cuts))
        self.assertTrue({10, 15, 20} & set(cuts))
        self.assertTrue({9, 14, 19} <= set(cuts))


class AgainstModel(LogCase):
    """Each sector's final letter must be one the rules allow: the last durable one or a later volatile one."""

    def random_log(self, chance):
        entries = []
        for number in range(40):
            kind = chance.random()
            sector = chance.randrange(SECTORS - 4)
            if kind < 0.15:
                entries.append((0, b"", FLUSH))
            elif kind < 0.2:
                entries.append((sector, chance.randrange(1, 4), DISCARD))
            else:
                flags = (FUA if chance.random() < 0.1 else 0) | (FLUSH if chance.random() < 0.05 else 0)
                entries.append((sector, letter(chr(65 + number), chance.randrange(1, 5)), flags))
        return entries

    def allowed(self, entries, cut):
        last_flush = max([n for n in range(cut + 1) if entries[n][2] & FLUSH], default=0)
        result = [{"."} for _ in range(SECTORS)]
        for number, (sector, data, flags) in enumerate(entries[:cut + 1]):
            sectors = data if flags & DISCARD else len(data) // 512
            value = "." if flags & DISCARD else chr(65 + number)
            for at in range(sector, sector + sectors):
                durable = number < last_flush or flags & FUA
                result[at] = {value} if durable else result[at] | {value}
        return result

    def test_every_sector_holds_an_allowed_write(self):
        for turn in range(150):
            chance = random.Random(turn)
            entries = self.random_log(chance)
            log = self.log(*entries)
            cut = chance.randrange(len(entries))
            image, _ = self.image(log, cut, turn)
            for at, choices in enumerate(self.allowed(entries, cut)):
                self.assertIn(image[at], choices, f"turn {turn}, cut {cut}, sector {at}")


class CommandLine(LogCase):
    def test_replay_writes_the_whole_log(self):
        self.log((0, letter("a"), 0), (1, letter("b"), 0))
        out = self.folder / "out"
        subprocess.run([str(HERE.parent / "replay"), str(self.folder / "log"), "--out", str(out)], check=True)
        self.assertEqual(out.read_bytes(), letter("a") + letter("b"))

    def test_replay_refuses_what_is_no_log(self):
        (self.folder / "log").write_bytes(b"x" * 2000)
        done = subprocess.run([str(HERE.parent / "replay"), str(self.folder / "log")], stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
