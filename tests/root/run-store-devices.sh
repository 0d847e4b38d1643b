#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The store on what people have: files on ext4, xfs and btrfs, block devices of 512 and 4,096 bytes a sector. Per device: format,
# objects of odd sizes in and out bit-exact, a killed node, the same objects after it, deleted space free again; and what must be
# refused is refused.
. tests/e2e/node.sh
loops=()
mounted=()
more_cleanup() {
	local item
	for item in "${mounted[@]}"; do umount -l "$item"; done
	for item in "${loops[@]}"; do losetup -d "$item" 2>/dev/null; done
}

# make_loop NAME SIZE SECTOR: a loop device in $loop
make_loop() {
	truncate -s "$2" "$work/$1.img" && loop=$(losetup -f --show -b "$3" "$work/$1.img" 2>"$work/loop.log") && loops+=("$loop")
}

use_device() { # PATH [SIZE]
	sed -i "s#devices: .*#devices: [ { path: $1${2:+, size: $2} } ]#" "$config"
}
compare() { # KEY FILE
	curl -sf -o "$work/back" "$s3/bucket/$1" && cmp "$work/back" "$2"
}
device_metric() { curl -sf "$admin/metrics" | awk -v n="^penstock_device_$1{" '$0 ~ n { print $NF }'; }

head -c 5000077 /dev/urandom >"$work/large"
head -c 4097 "$work/large" >"$work/small"
: >"$work/empty"

round() { # objects go in, the node is killed, the objects are there, deleted space is free
	"$PENSTOCK" format --force --config "$config" || return 1
	node_start
	curl -sf -X PUT "$s3/bucket" || return 1
	local name
	for name in large small empty; do curl -sf -T "$work/$name" "$s3/bucket/$name" || return 1; done
	curl -sf -T - "$s3/bucket/stream" <"$work/large" || return 1
	for name in large small empty; do compare "$name" "$work/$name" || return 1; done
	kill -KILL "$node"
	wait "$node" 2>/dev/null
	node_start
	for name in large small empty; do compare "$name" "$work/$name" || return 1; done
	compare stream "$work/large" || return 1
	for name in large small empty stream; do curl -sf -X DELETE "$s3/bucket/$name" || return 1; done
	[ "$(device_metric used_bytes)" = 0 ] || { echo "used: $(device_metric used_bytes)"; return 1; }
	node_stop
}

node_make 64MiB

for fs in ext4 xfs btrfs; do
	if ! command -v "mkfs.$fs" >/dev/null; then
		skip "a file on $fs" "mkfs.$fs is not installed"
		continue
	fi
	if ! make_loop "$fs" 512M 512 || ! "mkfs.$fs" -q "$loop" >"$work/mkfs.log" 2>&1 || ! mkdir "$work/$fs" ||
		! mount "$loop" "$work/$fs" 2>"$work/mount.log"; then
		skip "a file on $fs" "host: $(cat "$work/loop.log" "$work/mount.log" 2>/dev/null | tail -1)"
		continue
	fi
	mounted+=("$work/$fs")
	use_device "$work/$fs/store.img" 64MiB
	try "a file on $fs" round
	if [ "$fs" = btrfs ]; then
		try "btrfs is named as not direct" grep -q 'btrfs' "$work/node.log"
	fi
done

for sector in 512 4096; do
	if ! make_loop "block$sector" 96M "$sector"; then
		skip "a block device of $sector bytes a sector" "host: $(tail -1 "$work/loop.log")"
		continue
	fi
	use_device "$loop"
	try "a block device of $sector bytes a sector" round
	refused_again() { ! "$PENSTOCK" format --config "$config" 2>"$work/refused.log" && grep -q 'store already' "$work/refused.log"; }
	try "a formatted device of $sector bytes a sector is not formatted unasked" refused_again
done

if make_loop foreign 96M 512 && mkfs.ext4 -q "$loop" 2>"$work/mkfs.log"; then
	use_device "$loop"
	refused_foreign() { ! "$PENSTOCK" format --config "$config" 2>"$work/refused.log" && grep -q 'ext2/3/4 file system' "$work/refused.log"; }
	try "a file system is not formatted unasked" refused_foreign
	mkdir "$work/foreign" && mount "$loop" "$work/foreign" && mounted+=("$work/foreign")
	refused_mounted() { ! "$PENSTOCK" format --force --config "$config" 2>"$work/refused.log" && grep -q 'in use' "$work/refused.log"; }
	try "a mounted device is not formatted even when forced" refused_mounted
fi
close_lane
