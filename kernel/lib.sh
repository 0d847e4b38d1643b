# SPDX-License-Identifier: GPL-2.0
# Shared by every script in kernel/: where the cache is, how Debian's packages of one kernel
# version are fetched and unpacked, and how the patch series is applied to a copy of the source.
#
# It owns $PENSTOCK_KERNEL_CACHE (default: ~/.cache/penstock/kernel) and nothing else. It never
# touches the system's package lists: it fetches with a source list and a list folder of its own,
# from the mirror this machine already uses, checked with the installed archive keyring.
#
# Invariants:
#   1. Whatever lies under a finished cache name is complete: everything is made under a
#      temporary name and renamed in one step.
#   2. Unpacked sources are never patched in place; patches go onto copies.

set -eu

KERNEL_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KERNEL_SERIES=${PENSTOCK_KERNEL:-7.3}
KERNEL_CACHE=${PENSTOCK_KERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock/kernel}
KERNEL_CC=${PENSTOCK_KERNEL_CC:-gcc-12}
KERNEL_JOBS=${PENSTOCK_KERNEL_JOBS:-2}
KERNEL_NICE=${PENSTOCK_KERNEL_NICE:-19}
# Suites that carry kernels newer than the stable release, in the order they are asked.
KERNEL_SUITES=${PENSTOCK_KERNEL_SUITES:-trixie-backports sid}

# Run from a makefile, its variables (O, CC, -j, the job server) would reach the kernel's own makefiles.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

say() { printf 'kernel: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The base may leave Debian; exit status 4 lets a lane tell that from a build failure.
die_base_left() {
	say "Linux $KERNEL_SERIES has left Debian ($KERNEL_SUITES carry no linux-source-$KERNEL_SERIES): move the series to a newer base or set PENSTOCK_KERNEL."
	exit 4
}

mirror() {
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
		awk '$3 == "main" && $2 !~ /security|updates/ && !seen++ { print $1 }'
}

# The list folder is private, so apt must be told about every file it would otherwise share. A mirror frozen on purpose serves lists
# past their date; the signature is verified all the same.
apt_own() {
	local tool=$1
	shift
	"$tool" -qq -o Dir::Etc::SourceList="$KERNEL_CACHE/apt/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$KERNEL_CACHE/apt/lists" \
		-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::Check-Valid-Until=false \
		-o APT::Sandbox::User=root "$@"
}

# Refresh the private lists at most once a day. Without a network the old lists serve.
apt_refresh() {
	local stamp=$KERNEL_CACHE/apt/stamp suite uri
	mkdir -p "$KERNEL_CACHE/apt/lists/partial" "$KERNEL_CACHE/deb"
	if [ -n "$(find "$stamp" -mmin -1440 2>/dev/null)" ]; then
		return
	fi
	uri=$(mirror)
	[ -n "$uri" ] || die "this machine has no Debian mirror configured"
	for suite in $KERNEL_SUITES; do
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
	done >"$KERNEL_CACHE/apt/sources.list"
	if apt_own apt-get update >&2; then
		touch "$stamp"
	else
		say "package lists could not be refreshed; using what is cached"
	fi
}

# "name version" of every package of the wanted source version, e.g. linux-headers-7.3.4+deb13-amd64.
packages_matching() {
	apt_own apt-cache dumpavail 2>/dev/null | awk -v re="$1" '
		/^Package: / { name = $2 }
		/^Version: / { version = $2 }
		/^$/ { if (name ~ re) print name, version; name = "" }
		END { if (name ~ re) print name, version }' | sort -u
}

# Decide once which Debian version of the base is used; everything else must match it exactly.
resolve_base() {
	local best="" name version
	apt_refresh
	while read -r name version; do
		if [ -z "$best" ] || dpkg --compare-versions "$version" gt "$best"; then
			best=$version
		fi
	done < <(packages_matching "^linux-source-${KERNEL_SERIES//./\\\\.}\$")
	[ -n "$best" ] || die_base_left
	BASE_VERSION=$best
	BASE_ABI=$(packages_matching "^linux-headers-${KERNEL_SERIES//./\\\\.}[.][0-9]+.*-amd64\$" |
		awk -v v="$best" '$2 == v && $1 !~ /cloud|-rt-/ { sub(/^linux-headers-/, "", $1); print $1; exit }')
	[ -n "$BASE_ABI" ] || die_base_left
	BASE_COMMON=${BASE_ABI%-amd64}
}

# Download one package into the cache and print its path.
fetch_deb() {
	local name=$1 file
	file=$KERNEL_CACHE/deb/${name}_${BASE_VERSION//:/%3a}.deb
	if [ ! -s "$file" ]; then
		local tmp
		tmp=$(mktemp -d "$KERNEL_CACHE/deb/tmp.XXXXXX")
		(cd "$tmp" && apt_own apt-get download "$name=$BASE_VERSION") >&2 ||
			die "cannot fetch $name $BASE_VERSION"
		mv "$tmp"/*.deb "$file"
		rmdir "$tmp"
	fi
	echo "$file"
}

# Unpack packages into a finished cache folder: unpacked NAME PKG...; prints the folder.
unpacked() {
	local dir=$KERNEL_CACHE/$1-$BASE_VERSION tmp pkg
	shift
	if [ ! -d "$dir" ]; then
		tmp=$(mktemp -d "$dir.tmp.XXXXXX")
		for pkg in "$@"; do
			dpkg -x "$(fetch_deb "$pkg")" "$tmp"
		done
		chmod 755 "$tmp"
		mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp"
	fi
	echo "$dir"
}

# Debian's patched kernel source, unpacked once per Debian version; prints the folder.
source_tree() {
	local dir=$KERNEL_CACHE/source-$BASE_VERSION tmp
	if [ ! -d "$dir" ]; then
		say "unpacking linux-source-$KERNEL_SERIES $BASE_VERSION"
		tmp=$(mktemp -d "$dir.tmp.XXXXXX")
		dpkg -x "$(fetch_deb "linux-source-$KERNEL_SERIES")" "$tmp"
		tar -C "$tmp" --strip-components=1 -xf "$tmp"/usr/src/linux-source-*.tar.xz
		rm -r "$tmp/usr/src" "$tmp/usr/share"
		chmod 755 "$tmp"
		mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp"
	fi
	echo "$dir"
}

# Patch files in order, one path a line. With a group (1, 2, ...) only that hundred. Each kernel series
# has a list of its own, patches/series-VERSION; most patches are in several.
series_patches() {
	local file=$KERNEL_DIR/patches/series-$KERNEL_SERIES name
	[ -f "$file" ] || die "no patch series for Linux $KERNEL_SERIES (kernel/patches/series-$KERNEL_SERIES)"
	while read -r name; do
		case $name in '' | '#'*) continue ;; esac
		case $name in ${1:-}*) echo "$KERNEL_DIR/patches/$name" ;; esac
	done <"$file"
}

# A short name for the exact inputs of a build: the base, the files given, and any text on stdin.
inputs_hash() {
	{ echo "$BASE_VERSION $KERNEL_CC $("$KERNEL_CC" -dumpfullversion)"; cat "$@"; } |
		sha256sum | cut -c1-16
}

# The source with the whole series applied; prints the folder. One such tree is kept per base and
# brought up to date in place, so that files which no patch changed keep their times and objects.
patched_tree() {
	local src dir=$KERNEL_CACHE/patched-$BASE_VERSION new file patch
	src=$(source_tree)
	if [ ! -d "$dir" ]; then
		new=$(mktemp -d "$dir.tmp.XXXXXX")
		# Hard links: a patched file is written anew and leaves the original alone.
		cp -al "$src/." "$new/"
		chmod 755 "$new"
		mv -T "$new" "$dir"
	fi
	new=$(mktemp -d "$KERNEL_CACHE/series.tmp.XXXXXX")
	apply_series "$src" "$new"
	while read -r file; do
		cmp -s "$new/$file" "$dir/$file" && continue
		rm -f "$dir/$file"
		mkdir -p "$(dirname "$dir/$file")"
		cp "$new/$file" "$dir/$file"
	done < <(cd "$new" && find . -type f; previously_patched "$dir")
	(cd "$new" && find . -type f) >"$dir/.penstock-patched"
	rm -rf "$new"
	echo "$dir"
}

# Files an earlier state of the series changed and this one may not: they come back from the source.
previously_patched() {
	local dir=$1 file
	[ -f "$dir/.penstock-patched" ] || return 0
	while read -r file; do
		[ -e "$new/$file" ] && continue
		if [ -e "$src/$file" ]; then
			mkdir -p "$new/$(dirname "$file")"
			cp "$src/$file" "$new/$file"
			echo "$file"
		else
			rm -f "$dir/$file"
		fi
	done <"$dir/.penstock-patched"
}

# The files that patches touch, from the source into an empty folder, then the patches in order.
apply_series() {
	local src=$1 to=$2 patch file
	for patch in $(series_patches); do
		while read -r file; do
			[ -e "$src/$file" ] && [ ! -e "$to/$file" ] || continue
			mkdir -p "$to/$(dirname "$file")"
			cp "$src/$file" "$to/$file"
		done < <(git apply --numstat "$patch" | cut -f3)
		(cd "$to" && git apply "$patch") ||
			die "$(basename "$patch") does not apply to $BASE_VERSION"
	done
}
