# SPDX-License-Identifier: Apache-2.0
"""Builds the small C programs of tests/vm/prog, statically where the libraries allow it.

Owns build/vm/prog.  Extra flags stand in the source: a comment line `vm-link: -luring` adds
libraries.  Newer kernel headers and liburing come from the dependencies unpacked by `make deps`.
"""
import pathlib
import re
import subprocess

from .debian import HERE


class BuildError(Exception):
    """A guest program does not compile; the text is the compiler's."""


def _flags(build_folder):
    """Kernel headers first: liburing's own header wants newer ones than an old release has."""
    deps = build_folder / "deps"
    if not (deps / "liburing").exists():
        raise BuildError(f"{deps}/liburing is missing (make deps)")
    headers = [deps / "liburing/usr/include", deps / "kernel-headers/usr/include",
               deps / "kernel-headers/usr/include/x86_64-linux-gnu"]
    return [word for folder in headers for word in ("-isystem", str(folder))] + \
        ["-L", str(deps / "liburing/usr/lib/x86_64-linux-gnu")]


def build(name, build_folder):
    """Compiles prog/NAME.c when it is newer than its program; returns the program's path."""
    source = HERE / "prog" / (name + ".c")
    program = build_folder / "vm" / "prog" / name
    if not source.exists():
        raise BuildError(f"tests/vm/prog/{name}.c is missing")
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    link = re.findall(r"vm-link: *(.*)", source.read_text())
    command = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-static", *_flags(build_folder),
               "-o", str(program), str(source), *" ".join(link).replace("*/", "").split()]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise BuildError(f"{source.name} does not compile:\n{done.stdout[-1500:]}")
    return program
