# SPDX-License-Identifier: Apache-2.0
"""Builds the guest's initramfs: host programs with their libraries, kernel modules, cases.

Owns the newc archive format and the choice of files.  The large part (busybox, python3, tools) is
cached by hash outside the tree; the small part (modules, binaries under test, cases) is packed for
every boot and appended: the kernel unpacks concatenated archives in order.  Archives are not
compressed, because unpacking under emulation costs more than copying.  Must not start QEMU.
"""
import hashlib
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time

from .debian import HERE, SetupError, cache_root

# Programs every guest has.  The path in the guest is the path on the host.
TOOLS = ["/bin/dash", "/bin/bash", "/usr/bin/python3", "/usr/bin/curl", "/bin/ip", "/sbin/tc", "/sbin/ethtool",
         "/sbin/mkfs.ext4", "/sbin/e2fsck", "/sbin/mkfs.xfs"]
# Parts of the Python library that no test client needs; they are half of its size.
PYTHON_SKIP = {"test", "idlelib", "tkinter", "ensurepip", "lib2to3", "pydoc_data", "turtledemo",
               "distutils", "site-packages", "dist-packages"}
DIRECTORIES = ["proc", "sys", "dev", "run", "tmp", "root", "out", "mnt", "etc", "var", "home",
               "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "vm", "vm/applets", "vm/cases", "vm/prog",
               "vm/modules"]


class Archive:
    """A newc cpio archive in the making; adding the same path twice keeps the first."""

    def __init__(self, out):
        self.out = out
        self.seen = set()
        self.inode = 1

    def _entry(self, name, mode, data=b"", rdev=(0, 0)):
        self.inode += 1
        encoded = name.encode() + b"\0"
        fields = [self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, rdev[0], rdev[1], len(encoded), 0]
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self.out.write(header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4))

    def _parents(self, name):
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            self.directory("/".join(parts[:depth]))

    def _new(self, name):
        if name in self.seen:
            return False
        self._parents(name)
        self.seen.add(name)
        return True

    def directory(self, name):
        if name not in self.seen:
            self.seen.add(name)
            self._entry(name, stat.S_IFDIR | 0o755)

    def link(self, name, target):
        if self._new(name):
            self._entry(name, stat.S_IFLNK | 0o777, os.fsencode(target))

    def data(self, name, content, mode=0o644):
        if self._new(name):
            self._entry(name, stat.S_IFREG | mode, content)

    def device(self, name, major, minor):
        if self._new(name):
            self._entry(name, stat.S_IFCHR | 0o600, rdev=(major, minor))

    def file(self, path, name=None):
        """Adds a host file under its merged-/usr path (or `name`), following links."""
        path = pathlib.Path(path)
        target = name or merged(str(path))
        if target not in self.seen:
            mode = path.stat().st_mode & 0o777
            self.data(target, path.read_bytes(), mode | 0o444)

    def close(self):
        self._entry("TRAILER!!!", 0)


def merged(path):
    """The path inside the guest, where /bin, /sbin and /lib* are links into /usr as on Debian."""
    path = path.lstrip("/")
    return re.sub(r"^(bin|sbin|lib|lib64)/", r"usr/\1/", path)


def libraries(program):
    """Shared libraries, loader included, that the dynamic linker would map for `program`."""
    listing = subprocess.run(["ldd", str(program)], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
    if listing.returncode:
        return []  # A static program or a script: nothing to add.
    if "not found" in listing.stdout:
        raise SetupError(f"{program} lacks a library on this host:\n{listing.stdout}")
    return re.findall(r"(/\S+) \(0x", listing.stdout)


def add_program(archive, program, name=None):
    archive.file(program, name)
    for library in libraries(program):
        archive.file(library)


def _python_library():
    code = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    done = subprocess.run(["/usr/bin/python3", "-c", code], text=True, stdout=subprocess.PIPE, check=True)
    return pathlib.Path(done.stdout.strip())


def _add_python(archive):
    """Adds the standard library as compiled files without sources.

    The guest's clock and file times would make Python compile each import again, which is slow
    under emulation; a compiled file without its source is taken as it is.
    """
    root = _python_library()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "library")
        shutil.copytree(root, copy, ignore=lambda _, names: PYTHON_SKIP | {"__pycache__"} & set(names),
                        symlinks=False, ignore_dangling_symlinks=True)
        subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", "-b", "-s", str(copy), "-p", str(root),
                        str(copy)], check=True, stdout=subprocess.DEVNULL)
        for path in sorted(copy.rglob("*")):
            if path.suffix in (".py", ".a") or path.is_dir():
                continue
            target = root / path.relative_to(copy)
            if path.suffix == ".so":
                add_program(archive, path, merged(str(target)))
            else:
                archive.file(path, merged(str(target)))


def _write_base(path):
    with open(path, "wb") as out:
        archive = Archive(out)
        for directory in DIRECTORIES:
            archive.directory(directory)
        for name in ("bin", "sbin", "lib", "lib64"):
            archive.link(name, "usr/" + name)
        archive.device("dev/console", 5, 1)
        archive.file("/bin/busybox")
        # Applets live at the end of PATH, so that a real tool wins.  busybox's own shell would prefer its
        # applets whatever PATH says, so the guest has the host's shell.
        archive.link("usr/bin/sh", "dash")
        archive.link("usr/bin/env", "busybox")
        for tool in TOOLS:
            add_program(archive, tool)
        _add_python(archive)
        archive.data("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        archive.data("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        archive.data("etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n")
        archive.data("etc/nsswitch.conf", b"hosts: files\n")
        archive.close()


_base_lock = threading.Lock()


def base_archive():
    """The cached archive of host tools; rebuilt when a tool or this file changes. Guests are prepared two at a time."""
    with _base_lock:
        return _base_archive()


def _base_archive():
    key = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for tool in ["/bin/busybox", *TOOLS]:
        if not os.path.exists(tool):
            raise SetupError(f"{tool} is missing; add its package to group vm of deploy/deps/versions")
        state = os.stat(tool)
        key.update(f"{tool} {state.st_size} {state.st_mtime_ns}\n".encode())
    folder = cache_root() / "base"
    path = folder / (key.hexdigest()[:16] + ".cpio")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Working trees share the cache: each writes under a name of its own and none removes another's.
        partial = folder / f"{path.name}.{os.getpid()}"
        _write_base(partial)
        partial.rename(path)
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > 7 * 86400:
                old.unlink(missing_ok=True)
    os.utime(path)
    return path


class Modules:
    """Kernel modules of one kernel, found by name, unpacked, with what they depend on."""

    def __init__(self, folder, extra=()):
        self.paths = {}
        for path in list(pathlib.Path(folder).rglob("*.ko*")) + [pathlib.Path(p) for p in extra]:
            # A module built by us replaces the stock one of the same name.
            self.paths[path.name.split(".ko")[0].replace("-", "_")] = path
        self.content = {}

    def load(self, name):
        """The module's bytes, uncompressed, or None when the kernel has no such module file."""
        name = name.replace("-", "_")
        if name not in self.paths:
            return None
        if name not in self.content:
            path = self.paths[name]
            if path.suffix in (".xz", ".zst"):
                tool = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dcq"]}[path.suffix]
                self.content[name] = subprocess.run([*tool, str(path)], stdout=subprocess.PIPE,
                                                    check=True).stdout
            else:
                self.content[name] = path.read_bytes()
        return self.content[name]

    def order(self, wanted):
        """`wanted` with all dependencies, each after what it needs; names the kernel lacks are left out."""
        result, todo = [], [(name.replace("-", "_"), False) for name in reversed(wanted)]
        opened = set()
        while todo:
            name, ready = todo.pop()
            if ready:
                result.append(name)
                continue
            if name in opened or self.load(name) is None:
                continue
            opened.add(name)
            todo.append((name, True))
            todo.extend((needed, False) for needed in self._needs(name))
        return result

    def _needs(self, name):
        found = re.search(rb"\0depends=([^\0]*)\0", self.load(name))
        needed = found.group(1).decode().split(",") if found else []
        for soft in re.findall(rb"\0softdep=pre: ([^\0]*)\0", self.load(name)):
            needed += soft.decode().split()
        return [item.replace("-", "_") for item in needed if item]


def _add_guest(archive):
    archive.file(HERE / "guest" / "init", "init")
    for path in sorted((HERE / "guest").iterdir()):
        # Python leaves a cache folder here once a test imports a guest module.
        if path.name != "init" and path.is_file():
            archive.file(path, "vm/" + path.name)


def write_initramfs(path, modules, cases, binaries, settings):
    """Writes the initramfs of one boot.

    modules: a Modules; cases: in running order; binaries: {guest path: host path};
    settings: {name: text}, files under /vm the guest's init reads.
    """
    with open(path, "wb") as out:
        with open(base_archive(), "rb") as base:
            shutil.copyfileobj(base, out, 1 << 20)
        archive = Archive(out)
        _add_guest(archive)
        always, later = settings.pop("modules-load"), settings.pop("modules-have")
        for name in modules.order(always + later):
            archive.data(f"vm/modules/{name}.ko", modules.load(name))
            archive.data(f"vm/modules/{name}.needs", (" ".join(modules.order([name])) + "\n").encode())
        archive.data("vm/modules/load", ("\n".join(modules.order(always)) + "\n").encode())
        for case in cases:
            archive.file(case.path, f"vm/cases/{case.path.name}")
        for name, program in binaries.items():
            add_program(archive, program, name)
        for name, text in settings.items():
            archive.data(f"vm/{name}", text.encode())
        archive.close()
