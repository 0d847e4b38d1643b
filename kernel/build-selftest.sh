#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Packs the kernel selftest of patch 112 for a guest: build-selftest.sh OUT DEPS puts OUT/nsim-selftest.tar, with the
# script, the kernel's own shell library and the kernel's own receiver (iou-zcrx, static), in the folders of the kernel
# tree. DEPS is the folder that `make deps` fills: liburing and kernel headers come from there.

. "$(dirname "$0")/lib.sh"

out=${1:-build/kernel}
deps=${2:-build/deps}
SELFTESTS=tools/testing/selftests

main() {
	local src
	resolve_base
	src=$(source_tree)
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir "$work/tree" "$work/pack"
	apply_series "$src" "$work/tree"
	cd "$work/pack"
	mkdir -p drivers/net/netdevsim drivers/net/hw net/lib/sh
	cp "$work/tree/$SELFTESTS/drivers/net/netdevsim/zcrx.sh" drivers/net/netdevsim/
	cp "$src/$SELFTESTS/net/lib.sh" net/
	cp "$src/$SELFTESTS/net/lib/sh/defer.sh" net/lib/sh/
	cd - >/dev/null
	# The receiver gives up after five seconds, which is a matter of the machine: an emulated one with KASAN needs longer.
	sed 's/\(tstop = gettimeofday_ms() + \)5000;/\1120000;/' "$src/$SELFTESTS/drivers/net/hw/iou-zcrx.c" >"$work/iou-zcrx.c"
	grep -q '+ 120000;' "$work/iou-zcrx.c" || die "the selftest's receiver has another time-out"
	"$KERNEL_CC" -std=gnu11 -D_GNU_SOURCE -O2 -static -isystem "$deps/liburing/usr/include" \
		-isystem "$deps/kernel-headers/usr/include" -isystem "$deps/kernel-headers/usr/include/x86_64-linux-gnu" \
		-o "$work/pack/drivers/net/hw/iou-zcrx" "$work/iou-zcrx.c" \
		-L"$deps/liburing/usr/lib/x86_64-linux-gnu" -luring >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; die "the selftest's receiver does not compile"; }
	mkdir -p "$out"
	tar -C "$work/pack" -cf "$out/nsim-selftest.tar" .
	echo "$out/nsim-selftest.tar of Linux $KERNEL_SERIES with the series"
}

main
