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


def _make_flags(build):
    """Include and library folders of the unpacked dependencies."""
    flags = []
    deps = build / "deps"
    for folder in sorted(deps.glob("**/usr/include")) if deps.exists() else []:
        flags += ["-I", str(folder), "-I", str(folder / "x86_64-linux-gnu")]
    for folder in sorted(deps.glob("**/usr/lib/x86_64-linux-gnu")) if deps.exists() else []:
        flags += ["-L", str(folder)]
    return flags


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
    command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-static", *_make_flags(build_folder),
               "-o", str(program), str(source), *" ".join(link).replace("*/", "").split()]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise BuildError(f"{source.name} does not compile:\n{done.stdout[-1500:]}")
    return program
