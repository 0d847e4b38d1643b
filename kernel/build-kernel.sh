#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Builds a small kernel with the whole series applied: build-kernel.sh VARIANT OUT puts bzImage and
# modules/ into OUT, as tests/vm/run --kernel OUT wants them. VARIANT is "minimal" or "lockdep" (the
# same with lockdep, KASAN and the network core's own checks).
#
# About seven minutes of two cores, hence niced and cached by hash of base, patches, configuration and
# recipe. The object folder of a variant is kept, so that a change of one patch costs seconds.

. "$(dirname "$0")/lib.sh"

variant=${1:-minimal}
out=${2:-build/kernel/$variant}

fragments() {
	echo "$KERNEL_DIR/config/minimal"
	[ "$variant" = minimal ] || echo "$KERNEL_DIR/config/$variant"
}

# Every line of the fragments must be in force, or a test would pass for want of what it tests.
configure() {
	local src=$1 obj=$2 missing
	make -s -C "$src" O="$obj" CC="$KERNEL_CC" tinyconfig >&2
	# shellcheck disable=SC2046
	cat $(fragments) >>"$obj/.config"
	make -s -C "$src" O="$obj" CC="$KERNEL_CC" olddefconfig 2>&1 | { grep -v "override: reassigning" >&2 || true; }
	# shellcheck disable=SC2046
	missing=$(grep -hE '^CONFIG_' $(fragments) | grep -vxFf "$obj/.config" || true)
	[ -z "$missing" ] || die "the configuration did not take: $(echo $missing)"
}

build() {
	local result=$1 src obj work
	src=$(patched_tree)
	obj=$KERNEL_CACHE/obj-$variant-$BASE_VERSION
	mkdir -p "$obj"
	configure "$src" "$obj"
	say "building the $variant kernel $BASE_VERSION (minutes; log in $obj/log)"
	nice -n "$KERNEL_NICE" make -C "$src" O="$obj" CC="$KERNEL_CC" -j"$KERNEL_JOBS" \
		bzImage modules >"$obj/log" 2>&1 || { tail -30 "$obj/log" >&2; die "the kernel does not build"; }
	work=$(mktemp -d "$result.tmp.XXXXXX")
	cp "$obj/arch/x86/boot/bzImage" "$work/"
	mkdir "$work/modules"
	find "$obj" -name '*.ko' -exec cp {} "$work/modules/" \;
	strip --strip-debug "$work"/modules/*.ko
	chmod 755 "$work"
	mv -T "$work" "$result" 2>/dev/null || rm -rf "$work"
}

main() {
	local result
	resolve_base
	# shellcheck disable=SC2046
	result=$KERNEL_CACHE/kernel-$variant-$(inputs_hash "$0" "$KERNEL_DIR/lib.sh" $(fragments) $(series_patches))
	[ -d "$result" ] || build "$result"
	mkdir -p "$out/modules"
	rm -f "$out"/modules/*.ko
	cp -f "$result/bzImage" "$out/"
	cp -f "$result"/modules/*.ko "$out/modules/"
	echo "$out/bzImage and $(ls "$out/modules" | wc -l) modules, Linux $KERNEL_SERIES with the series, $variant"
}

main
