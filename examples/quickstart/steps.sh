# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What run.sh and vllm.sh have in common; they source it. It sets the environment of the engines: no model hub is ever
# asked, and nothing from outside the virtual environment gets into it.

quickstart=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$quickstart/../.." && pwd)

export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 PYTHONNOUSERSITE=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

# step TEXT begins a step, and ends the one before it.
step() {
	step_end
	step_number=$((${step_number:-0} + 1))
	step_start=${EPOCHREALTIME//[!0-9]/}
	printf '\n== %d. %s\n' "$step_number" "$1"
}

# step_end says how long the step took.
step_end() {
	[ -n "${step_start:-}" ] || return 0
	local tenths=$(((${EPOCHREALTIME//[!0-9]/} - step_start) / 100000))
	printf '   (%d.%d s)\n' $((tenths / 10)) $((tenths % 10))
	step_start=
}

say() { printf '   %s\n' "$*"; }

fail() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# show COMMAND... prints a command and runs it.
show() {
	say "\$ $(basename "$1") ${*:2}"
	"$@"
}

# find_python COMMAND... prints the path of the first Python that can make an environment and that COMMAND can run, which
# is env or a change of user. Debian's has no venv module without the package python3-venv.
find_python() {
	local python candidates=(python3 /usr/bin/python3)
	[ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
	for python in "${candidates[@]}"; do
		"$@" "$python" -c 'import sys, venv, ensurepip
if not (3, 11) <= sys.version_info[:2] <= (3, 13): sys.exit(1)
print(sys.executable)' 2>/dev/null && return
	done
	fail "no usable Python among ${candidates[*]}: versions 3.11 to 3.13 with the module venv will do (Debian: python3-venv)"
}

# make_environment PYTHON VENV REQUIREMENTS [COMMAND...] makes a virtual environment with exactly the packages of the
# file, or takes the one that an earlier call has finished. COMMAND runs at its end, as a part of it.
make_environment() {
	local base_python=$1 venv=$2 requirements=$3 stamp
	stamp=$({ "$base_python" -VV && cat "$requirements"; } | sha256sum)
	if [ "$(cat "$venv/complete" 2>/dev/null)" = "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
		say "taking the one in $venv"
		return
	fi
	# Never take away what is no environment: the path may come from the command line.
	if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
		fail "$venv is there and is no virtual environment"
	fi
	say "making one in $venv, with $base_python"
	rm -rf "$venv"
	"$base_python" -m venv "$venv"
	install_packages "$venv" "$requirements"
	"${@:4}"
	echo "$stamp" >"$venv/complete"
}

# install_packages VENV REQUIREMENTS installs with pip and lists the larger files that pip takes.
install_packages() {
	"$1/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps --only-binary :all: --retries 2 \
		--progress-bar off -r "$2" |
		sed -nuE 's/^ *(Downloading|Using cached) ([^ ]+) \(([0-9.]+ [MG]B)\).*/   \3  \2/p' ||
		fail "pip could not install the Python packages, see above. The first run needs the network, for a Python package
index that pip knows; later runs don't. Run it again: what was downloaded is not downloaded twice."
}

# take_lock DIRECTORY waits until this is the only quickstart that works in the directory. It lasts as long as the shell.
take_lock() {
	mkdir -p "$1"
	exec {quickstart_lock}>"$1/lock"
	flock -n "$quickstart_lock" && return
	echo "waiting for another quickstart in $1"
	flock "$quickstart_lock"
}

# build_programs DIRECTORY builds the programs of mooncake_weight and puts them first in PATH.
build_programs() {
	command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin # Go's installer leaves PATH as it is in some shells
	command -v go >/dev/null || fail "Go is needed, see https://go.dev/doc/install"
	mkdir -p "$1"
	(cd "$repository" && go build -buildvcs=false -o "$1/" ./examples/mooncake_weight{,_import,_check}) ||
		fail "go build failed, see above. The first one needs the network, for Go modules, and the packages of .ci/setup."
	export PATH=$1:$PATH
}

# compare ANSWER ANSWER shows the answers from the original files and from the store, and fails unless they are equal.
compare() {
	say "from the original files:  $1"
	say "from the store:           $2"
	[ -n "$1" ] || fail "no answer"
	[ "$1" = "$2" ] || fail "the answers differ"
	say "equal"
}
