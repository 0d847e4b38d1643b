#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Builds the patched netdevsim.ko for Debian's stock kernel and copies it, with the stock
# psample.ko it depends on, to the folder given (default build/kernel). Nothing is installed and
# no kernel is built: only the first hundred of the series, which touches drivers/net/netdevsim
# alone, takes part.
#
# Debian's header package was made by a newer compiler on a newer C library than a Debian 12
# machine has, hence three corrections, each explained where it is made.

. "$(dirname "$0")/lib.sh"

out=${1:-build/kernel}

# objtool and modpost of the header package need a newer libc, so they are built from the source.
host_tools() {
	local src=$1 hdr=$2 dir=$KERNEL_CACHE/hosttools-$BASE_VERSION tmp
	if [ ! -d "$dir" ]; then
		say "building the kernel's host tools once"
		tmp=$(mktemp -d "$dir.tmp.XXXXXX")
		cp "$hdr/.config" "$tmp/.config"
		# Signing and BTF would ask for keys and for pahole; a module for a test guest needs neither.
		sed -i -e '/^CONFIG_DEBUG_INFO_BTF/d' -e '/^CONFIG_SYSTEM_TRUSTED_KEYS/d' "$tmp/.config"
		make -s -C "$src" O="$tmp" CC="$KERNEL_CC" olddefconfig >&2 || die "the host tools cannot be configured"
		make -s -C "$src" O="$tmp" CC="$KERNEL_CC" -j"$KERNEL_JOBS" modules_prepare >&2 ||
			die "the host tools do not build (bc, bison, flex, libelf-dev?)"
		mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp"
	fi
	echo "$dir"
}

# Names of configuration items that this compiler does not live up to.
compiler_lacks() {
	echo | "$KERNEL_CC" -fmin-function-alignment=16 -xc -c -o /dev/null - 2>/dev/null ||
		echo CC_HAS_MIN_FUNCTION_ALIGNMENT
	echo 'struct s { int n; char data[] __attribute__((__counted_by__(n))); };' |
		"$KERNEL_CC" -Werror -xc -c -o /dev/null - 2>/dev/null ||
		echo CC_HAS_COUNTED_BY CC_HAS_COUNTED_BY_PTR
}

# A private copy of the header package which works where it lies and with this compiler.
header_tree() {
	local root=$1 tools=$2 dir=$KERNEL_CACHE/headers-$BASE_VERSION-$(
		"$KERNEL_CC" -dumpfullversion) tmp h
	if [ ! -d "$dir" ]; then
		tmp=$(mktemp -d "$dir.tmp.XXXXXX")
		cp -a "$root/usr" "$tmp/"
		h=$tmp/usr/src/linux-headers-$BASE_ABI
		# The package's makefiles name the place where a package manager would put them.
		sed -i "s#/usr/src#$dir/usr/src#" "$h/Makefile"
		# The configuration records what Debian's newer compiler can do.
		for lacks in $(compiler_lacks); do
			sed -i "/CONFIG_$lacks\b/d" \
				"$h/include/config/auto.conf" "$h/include/generated/autoconf.h"
		done
		# Without a vmlinux beside the headers kbuild makes no BTF, which would need pahole.
		rm -f "$h/vmlinux"
		local k=$tmp/usr/lib/linux-kbuild-$BASE_COMMON
		cp "$tools/tools/objtool/objtool" "$k/tools/objtool/objtool" || die "no objtool"
		cp "$tools/scripts/mod/modpost" "$k/scripts/mod/modpost" || die "no modpost"
		mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp"
	fi
	echo "$dir/usr/src/linux-headers-$BASE_ABI"
}

patched_netdevsim() {
	local src=$1 work=$2 patch
	mkdir -p "$work/drivers/net"
	cp -r "$src/drivers/net/netdevsim" "$work/drivers/net/"
	for patch in $(series_patches 1); do
		(cd "$work" && git apply --include='drivers/net/netdevsim/*' "$patch") ||
			die "$(basename "$patch") does not apply to $BASE_VERSION"
	done
}

build() {
	local result=$1 root src tools hdr work modules
	root=$(unpacked pkgroot "linux-headers-$BASE_ABI" "linux-headers-$BASE_COMMON-common" \
		"linux-kbuild-$BASE_COMMON")
	src=$(source_tree)
	tools=$(host_tools "$src" "$root/usr/src/linux-headers-$BASE_ABI") || exit 1
	hdr=$(header_tree "$root" "$tools") || exit 1
	modules=$(unpacked modules "linux-modules-$BASE_ABI")
	work=$(mktemp -d "$result.tmp.XXXXXX")
	patched_netdevsim "$src" "$work"
	say "building netdevsim.ko for $BASE_ABI"
	nice -n "$KERNEL_NICE" make -s -C "$hdr" M="$work/drivers/net/netdevsim" CC="$KERNEL_CC" \
		CROSS_COMPILE= CONFIG_NETDEVSIM=m -j"$KERNEL_JOBS" modules >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; die "netdevsim does not compile"; }
	if grep -qE '^[^ ]+:[0-9]+:.*warning:' "$work/log"; then
		cat "$work/log" >&2
		die "netdevsim compiles with warnings"
	fi
	mkdir "$work/out"
	strip --strip-debug -o "$work/out/netdevsim.ko" "$work/drivers/net/netdevsim/netdevsim.ko"
	xz -dc "$(find "$modules" -name psample.ko.xz)" >"$work/out/psample.ko"
	echo "$BASE_ABI" >"$work/out/release"
	rm -r "$work/drivers"
	chmod 755 "$work"
	mv -T "$work" "$result" 2>/dev/null || rm -rf "$work"
}

main() {
	local result
	resolve_base
	# The script takes part in the hash: another recipe is another result.
	# shellcheck disable=SC2046
	result=$KERNEL_CACHE/module-$(inputs_hash "$0" "$KERNEL_DIR/lib.sh" $(series_patches 1))
	[ -d "$result" ] || build "$result"
	mkdir -p "$out"
	cp -f "$result"/out/* "$out/"
	echo "$out/netdevsim.ko and $out/psample.ko for Linux $(cat "$out/release")"
}

main
