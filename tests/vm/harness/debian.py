# SPDX-License-Identifier: Apache-2.0
"""Gets Debian packages for the VM lane: installs host tools, fetches the stock kernel.

Owns the cache folder's `apt` (source list, package lists) and `kernel` (unpacked images).  It uses
the ordinary package client with a source list and list folder of its own, so the host's package
state never changes by looking at newer suites, and the client verifies every signature.  No host
name appears here: the mirror is the one the machine already uses.  Must not know about QEMU or cases.
"""
import os
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent.parent
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class SetupError(Exception):
    """The lane cannot be set up; the text says what is missing and what to do."""


def cache_root():
    """The folder outside the tree where downloads and images live between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = pathlib.Path(base) / "penstock" / "vm"
    path.mkdir(parents=True, exist_ok=True)
    return path


def read_table(name):
    """Reads a `word word...` file beside the driver, without its comments."""
    lines = (HERE / name).read_text().splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def versions():
    """The versions file as a dictionary of lists."""
    return {row[0]: row[1:] for row in read_table("versions")}


def install_missing():
    """Installs the host packages of the vm group that are missing; does nothing the second time."""
    if subprocess.run([HERE.parent.parent / "deploy" / "deps" / "setup", "vm"]).returncode:
        raise SetupError("the packages of group vm in deploy/deps/versions could not be installed")


class Apt:
    """The package client on our own source list."""

    def __init__(self, root, suites):
        self.root = root / "apt"
        (self.root / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self.root / "cache").mkdir(exist_ok=True)
        self.list_file = self.root / "sources.list"
        self.list_file.write_text("".join(
            f"deb [arch=amd64 signed-by={KEYRING}] {self._mirror()} {suite} main\n" for suite in suites))

    @staticmethod
    def _mirror():
        answer = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)"],
            stdout=subprocess.PIPE, text=True, check=True).stdout
        for line in answer.splitlines():
            uri, release, component = line.split("|")
            if component == "main" and not re.search(r"-(security|updates|backports)$", release):
                return uri
        raise SetupError("the package client knows no Debian main archive (run apt-get update?)")

    def run(self, tool, *args, cwd=None):
        """Runs apt-get or apt-cache; returns its output, raises SetupError with its last lines."""
        options = {"Dir::Etc::SourceList": self.list_file, "Dir::Etc::SourceParts": "/dev/null",
                   "Dir::State::Lists": self.root / "lists", "Dir::Cache": self.root / "cache",
                   "Acquire::Languages": "none",
                   # A mirror frozen on purpose serves lists past their date; the signature is verified all the same.
                   "Acquire::Check-Valid-Until": "false"}
        if os.geteuid() == 0:
            # The unprivileged download user cannot enter a private cache folder.
            options["APT::Sandbox::User"] = "root"
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        done = subprocess.run([tool, *flags, *args], cwd=cwd, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SetupError(f"{tool} {' '.join(args)} failed:\n{done.stdout[-2000:]}")
        return done.stdout


def pick_release(names, series):
    """Newest release of `series` among package names such as linux-binary-7.3.4+deb13-amd64."""
    pattern = re.compile(r"^linux-binary-(" + re.escape(series) + r"\.(\d+)(?:\+[a-z0-9]+)?-amd64)\b", re.M)
    found = sorted((int(m.group(2)), m.group(1)) for m in pattern.finditer(names))
    return found[-1][1] if found else None


def _download(apt, release, target):
    work = target.with_name(target.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    packages = [f"linux-binary-{release}", f"linux-modules-{release}"]
    print("vm: downloading " + " ".join(packages), flush=True)
    apt.run("apt-get", "download", *packages, cwd=work)
    for package in sorted(work.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=work, check=True)
        package.unlink()
    work.rename(target)


def stock_kernel(refresh=False):
    """Returns (release, vmlinuz path, module folder) of the stock kernel, from the cache if it can."""
    root, wanted = cache_root(), versions()
    series = wanted["series"][0]
    have = sorted(root.glob(f"kernel/{series}.*-amd64"), key=lambda p: p.stat().st_mtime)
    if have and not refresh:
        target = have[-1]
    else:
        apt = Apt(root, wanted["suites"])
        apt.run("apt-get", "update")
        names = apt.run("apt-cache", "search", "--names-only", r"^linux-binary-[0-9.]+\+")
        release = pick_release(names, series)
        if not release:
            raise SetupError(f"Debian no longer carries a Linux {series} image in "
                             f"{', '.join(wanted['suites'])}; move tests/vm/versions to a newer series")
        target = root / "kernel" / release
        if not target.exists():
            _download(apt, release, target)
    release = target.name
    if not release.startswith(wanted["tested"][0] + "+") and release != wanted["tested"][0]:
        print(f"vm: note: kernel {release}; last tested was {wanted['tested'][0]}", flush=True)
    modules = target / "usr" / "lib" / "modules" / release
    return release, modules / "vmlinuz", modules
