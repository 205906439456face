#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One load on the C++ Mooncake Store's Python package and on ours, in turns on this machine, side by side: run.sh [ROUNDS]
#
# Theirs is mooncake-transfer-engine-non-cuda from PyPI, with its master on this machine; on Debian it takes
# libibverbs1 librdmacm1 libnuma1 libcurl4. Both get 4 GiB of memory.
#
#   SECONDS_PER_CASE   Default: 1
#   FAST=1             with the compiled module of capi/python/fast
#   PYTHON             the Python to use. Default: python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} seconds=${SECONDS_PER_CASE:-1} python=${PYTHON:-python3}
directory=${XDG_CACHE_HOME:-~/.cache}/mooncake-go/peerbench
work=$(mktemp -d)
master=
cleanup() {
	[ -z "$master" ] || kill "$master" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT

install() { # NAME PACKAGE...
	[ -x "$directory/$1/bin/python" ] || "$python" -m venv "$directory/$1"
	"$directory/$1/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --upgrade "${@:2}"
}
mkdir -p "$directory"
[ -e "$directory/theirs/bin/mooncake_master" ] || install theirs mooncake-transfer-engine-non-cuda==0.3.13.post1
install ours ../../capi/python ../../capi/python/compat
fast=0
if [ "${FAST:-0}" = 1 ]; then
	install ours ../../capi/python/fast
	fast=1
fi

"$directory/theirs/bin/mooncake_master" --enable_http_metadata_server=true >"$work/master.log" 2>&1 &
master=$!
sleep 2

for ((i = 1; i <= rounds; i++)); do
	echo "round $i of $rounds" >&2
	"$directory/theirs/bin/python" load.py 127.0.0.1:50051 http://127.0.0.1:8080/metadata "$seconds" >>"$work/theirs" 2>"$work/theirs.log" ||
		{ tail -5 "$work/theirs.log" >&2 && exit 1; }
	MOONCAKE_PYTHON_FAST=$fast "$directory/ours/bin/python" load.py embedded P2PHANDSHAKE "$seconds" >>"$work/ours"
done
"$python" table.py "$work/theirs" "$work/ours"
