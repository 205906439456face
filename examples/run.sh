#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the examples hello, batch, views and weights in Go, C, C++ and Python and compares what they print with the files in
# expected: run.sh [go|c|cpp|python]...
#
# C and C++ are built with what pkg-config says of an installed libmooncake: of `make -C capi install PREFIX=...`, or of
# MOONCAKE_PREFIX. Python is PYTHON, which has the package libmooncake.
set -euo pipefail
[ -z "${MOONCAKE_PREFIX:-}" ] || MOONCAKE_PREFIX=$(realpath "$MOONCAKE_PREFIX")
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-python3}
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
[ -z "${MOONCAKE_PREFIX:-}" ] || export PKG_CONFIG_PATH=$MOONCAKE_PREFIX/lib/pkgconfig LD_LIBRARY_PATH=$MOONCAKE_PREFIX/lib

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build LANGUAGE NAME makes the program of an example, and sets command to what runs it.
build() {
	command=("$work/$1-$2")
	local flags
	case $1 in
	go) (cd .. && go build -buildvcs=false -o "$work/$1-$2" "./examples/go/$2") ;;
	c) read -ra flags <<<"$(pkg-config --cflags --libs mooncake)" && cc -std=c11 -Wall -Wextra -o "$work/$1-$2" "c/$2.c" "${flags[@]}" ;;
	cpp) read -ra flags <<<"$(pkg-config --cflags --libs mooncake)" && c++ -std=c++11 -Wall -Wextra -o "$work/$1-$2" "cpp/$2.cpp" "${flags[@]}" ;;
	python) command=("$PYTHON" "python/$2.py") ;;
	*) echo "no such language: $1" >&2 && exit 2 ;;
	esac
}

languages=("$@")
[ ${#languages[@]} -gt 0 ] || languages=(go c cpp python)
for language in "${languages[@]}"; do
	for name in hello batch views weights; do
		build "$language" "$name"
		arguments=()
		if [ "$name" = weights ]; then
			rm -rf "$work/store" "$work/model"
			"$PYTHON" tiny_model.py "$work/model"
			arguments=("$work/store" "$work/model")
		fi
		"${command[@]}" "${arguments[@]}" >"$work/output" 2>"$work/errors" || { cat "$work/errors" >&2 && exit 1; }
		diff -u "expected/$name.txt" "$work/output" || { echo "$language $name: the output differs" >&2 && exit 1; }
		echo "$language $name: ok"
	done
done
