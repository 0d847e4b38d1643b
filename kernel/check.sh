#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Checks the series patch by patch against the newest Debian source of its base: each patch applies
# in order, satisfies the kernel's own checkpatch, and after each one every object that the series
# touches compiles with W=1 and warns of nothing that the untouched source did not warn of (so the
# series can be bisected). At the end sparse, where it is installed, must find nothing new either.
#
# Works in $PENSTOCK_KERNEL_CACHE. Closes with "N passed, N failed, N skipped". Exit status 4 when the base has
# left Debian.

. "$(dirname "$0")/lib.sh"

# FILE_PATH_CHANGES wants MAINTAINERS touched for new files, which its patterns cover already.
# The author's address is what this repository is configured with.
CHECKPATCH="--strict --terse --no-summary --ignore FILE_PATH_CHANGES"

passed=0
failed=0
skipped=0

pass() { echo "  ok   $1"; passed=$((passed + 1)); }
fail() { echo "  FAIL $1"; failed=$((failed + 1)); }

# A pristine tree at a fixed path, so that objects can be reused from run to run.
prepare_tree() {
	local file
	if [ ! -d "$tree" ]; then
		mkdir "$tree.tmp.$$"
		cp -al "$src/." "$tree.tmp.$$/"
		mv -T "$tree.tmp.$$" "$tree"
	fi
	for file in $(touched_files); do
		if [ -e "$src/$file" ]; then
			cmp -s "$src/$file" "$tree/$file" || cp --remove-destination "$src/$file" "$tree/$file"
		else
			rm -f "$tree/$file"
		fi
	done
}

touched_files() {
	local patch
	for patch in $(series_patches); do
		git apply --numstat "$patch" | cut -f3
	done | sort -u
}

objects() {
	touched_files | sed -n 's#^\([^t].*\)\.c$#\1.o#p' | while read -r object; do
		[ -e "$tree/${object%.o}.c" ] && echo "$object"
	done
}

compile() {
	# shellcheck disable=SC2046
	nice -n "$KERNEL_NICE" make -s -k -C "$tree" O="$obj" CC="$KERNEL_CC" -j"$KERNEL_JOBS" "$@" $(objects)
}

configure() {
	mkdir -p "$obj"
	make -s -C "$tree" O="$obj" CC="$KERNEL_CC" tinyconfig >&2
	cat "$KERNEL_DIR/config/minimal" "$KERNEL_DIR/config/check" >>"$obj/.config"
	make -s -C "$tree" O="$obj" CC="$KERNEL_CC" olddefconfig >/dev/null 2>&1
	nice -n "$KERNEL_NICE" make -s -C "$tree" O="$obj" CC="$KERNEL_CC" -j"$KERNEL_JOBS" modules_prepare >&2
}

# Warnings without the line numbers, which any patch moves.
warnings() { sed -n 's/^[^ ]*\/\([^/: ]*\):[0-9]*:[0-9]*: \(warning\|error\): /\1: /p' "$1" | sort -u; }

check_patch() {
	local patch=$1 name log=$work/log complaints
	name=$(basename "$patch")
	if ! (cd "$tree" && git apply "$patch"); then
		fail "$name: applies"
		return 1
	fi
	complaints=$(cd "$tree" && scripts/checkpatch.pl $CHECKPATCH "$patch" 2>/dev/null || true)
	[ -z "$complaints" ] || { echo "$complaints"; fail "$name: checkpatch"; }
	if ! compile W=1 >"$log" 2>&1; then
		cat "$log"
		fail "$name: compiles"
		return 1
	fi
	warnings "$log" | comm -13 "$work/warnings" - >"$work/new"
	if [ -s "$work/new" ]; then
		cat "$work/new"
		fail "$name: new warnings"
		return 1
	fi
	[ -n "$complaints" ] || pass "$name: applies, checkpatch, compiles, no new warnings"
}

# sparse 0.6.4 does not know an operator that Linux 7.3 uses, upon which the kernel's makefile quietly runs no sparse at all.
SPARSE="sparse -D__typeof_unqual__=__typeof__"

sparse_findings() {
	compile C=2 CHECK="$SPARSE" >"$work/log" 2>&1 || true
	! grep -q 'is not available or not up to date' "$work/log" || die "the kernel does not take this sparse"
	warnings "$work/log"
}

# A checker that finds nothing must be known to find something: a length in network order taken for a number.
sparse_works() {
	printf '%s\n' 'typedef unsigned short __attribute__((bitwise)) be16;' \
		'unsigned short f(be16 x); unsigned short f(be16 x) { return x; }' >"$work/fault.c"
	$SPARSE -Wbitwise "$work/fault.c" 2>&1 | grep -q 'different base types\|incorrect type'
}

# What the untouched source warns of, by the compiler and by sparse. It is half of the work and the same for every state of the
# series that touches the same files, so it is kept.
base_findings() {
	local dir tmp
	dir=$KERNEL_CACHE/check-base-$({ echo "$BASE_VERSION $(touched_files)"; "$KERNEL_CC" --version; sparse --version 2>&1
		cat "$KERNEL_DIR/config/minimal" "$KERNEL_DIR/config/check"; } | sha256sum | cut -c1-16)
	if [ ! -d "$dir" ]; then
		tmp=$(mktemp -d "$dir.tmp.XXXXXX")
		# Whatever was compiled before says nothing about warnings now.
		# shellcheck disable=SC2046
		(cd "$obj" && rm -f $(objects))
		compile W=1 >"$work/log" 2>&1 || { cat "$work/log"; die "the untouched source does not compile"; }
		warnings "$work/log" >"$tmp/warnings"
		command -v sparse >/dev/null && sparse_findings >"$tmp/sparse"
		mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp"
	fi
	cp "$dir"/* "$work/"
}

main() {
	local patch
	resolve_base
	src=$(source_tree)
	tree=$KERNEL_CACHE/check-$BASE_VERSION
	obj=$KERNEL_CACHE/obj-check-$BASE_VERSION
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	echo "series $KERNEL_SERIES against linux-source-$KERNEL_SERIES $BASE_VERSION"
	prepare_tree
	configure
	! command -v sparse >/dev/null || sparse_works || die "sparse does not find a planted fault"
	base_findings
	for patch in $(series_patches); do
		check_patch "$patch" || break
	done
	if [ -e "$work/sparse" ]; then
		sparse_findings | comm -13 "$work/sparse" - >"$work/new"
		if [ -s "$work/new" ]; then
			cat "$work/new"
			fail "sparse finds something new"
		else
			pass "sparse finds nothing new"
		fi
	else
		echo "  skip sparse: not installed"
		skipped=$((skipped + 1))
	fi
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ]
}

main
