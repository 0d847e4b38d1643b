# SPDX-License-Identifier: Apache-2.0
"""Reads the cases' headers and decides which of them share a boot.

Owns the header grammar (README.md describes it).  Pure: looks at files, starts nothing.
"""
import pathlib
import re

DEFAULT_DRIVE = "nvme size=512M"
KEYS = {"drive", "memory", "cpus", "cmdline", "modules", "have", "need", "prog", "file", "timeout",
        "boot", "after", "kernel", "lane", "nic", "full"}


class Case:
    """One case file and what its header asks for."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.name = self.path.stem
        self.values = {key: [] for key in KEYS}
        for line in self.path.read_text().splitlines():
            if line and not line.startswith("#"):
                break
            found = re.match(r"# vm-(\w+): *(.*)$", line)
            if found and found.group(1) not in KEYS:
                raise ValueError(f"{path}: unknown header vm-{found.group(1)}")
            if found:
                self.values[found.group(1)].append(found.group(2).strip())
        self.timeout = int(self.one("timeout", "60"))
        self.full_timeout = int(self.one("full", self.timeout))
        self.drives = [parse_drive(text) for text in self.values["drive"] or [DEFAULT_DRIVE]]
        self.nics = self.values["nic"]

    def one(self, key, default):
        values = self.values[key]
        return values[-1] if values else default

    def words(self, key):
        return [word for text in self.values[key] for word in text.split()]

    def matches(self, wanted):
        return wanted in (self.name, self.name.split("-", 1)[-1], self.path.name)

    def boot_key(self):
        """Cases with equal keys run in one boot, unless a case asks for its own."""
        own = self.name if self.one("boot", "shared") == "own" else ""
        return (own, self.one("memory", "2G"), self.one("cpus", "2"), self.one("cmdline", ""),
                self.one("kernel", "stock"), tuple(self.nics), tuple(tuple(sorted(d.items())) for d in self.drives))


def parse_drive(text):
    """`nvme size=512M lba=4096 name=pc log=yes` as a dictionary; `type` is its first word."""
    words = text.split()
    drive = {"type": words[0]}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in ("size", "lba", "name", "log", "from", "options"):
            raise ValueError(f"unknown drive option {word}")
        drive[key] = value
    return drive


def read_all(folder):
    """All cases in running order; two of one number and name would hide each other."""
    paths = [path for path in sorted(pathlib.Path(folder).iterdir()) if path.suffix in (".sh", ".py")]
    cases = [Case(path) for path in paths]
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise ValueError("two cases have the same name")
    return cases


def select(cases, wanted, lane):
    """Cases of a lane, or those named in `wanted` together with the ones they come after."""
    if not wanted:
        return [case for case in cases if lane in (case.words("lane") or ["vm"])]
    chosen = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        found = [case for case in cases if case.matches(name)]
        if not found:
            raise ValueError(f"no case is called {name}; there are: " + " ".join(c.name for c in cases))
        for case in found:
            if case.name not in chosen:
                chosen.add(case.name)
                todo += case.words("after")
    return [case for case in cases if case.name in chosen]


def group(cases):
    """Lists of cases that share a boot, ordered by their first case."""
    boots = {}
    for case in cases:
        boots.setdefault(case.boot_key(), []).append(case)
    return list(boots.values())
