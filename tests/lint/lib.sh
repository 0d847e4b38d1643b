# SPDX-License-Identifier: Apache-2.0
# Shared by the checks: which files there are. Sourced, with the root of the tree as working directory.
# LINT_OUT, LINT_CPPFLAGS and LINT_CFLAGS come from the Makefile ("make lint").

set -u
: "${LINT_OUT:=build}" "${LINT_CPPFLAGS:=}" "${LINT_CFLAGS:=}"

# Files of ours below the named folders (default: the whole tree), by find so that an export without .git is checked as well.
ours() {
	find "${@:-.}" \( -path ./build -o -path ./run -o -path ./.git -o -name node_modules -o -name __pycache__ \) -prune \
		-o -type f -print 2>/dev/null | sed 's,^\./,,' | sort
}

# C of the programs and of the tests. kernel/ keeps the kernel's own style and is checked by its own build.
c_files() { ours netcore storage conf server tests | grep -E '\.[ch]$' | grep -v '^tests/vm/'; }
c_units() { c_files | grep -E '\.c$' | grep -v '\.bpf\.c$'; }
