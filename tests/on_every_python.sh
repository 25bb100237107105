#!/usr/bin/env bash
# The tests on every interpreter from 3.11 up that is found: on PATH, and in pyenv's folder if there is one.
# One environment each, under .venvs/; a summary at the end; not zero if any failed or none was found.
# Arguments are passed on to pytest; JOBS says how many processes run the tests (default: two more than there are cores).
set -uo pipefail
JOBS=${JOBS:-$(($(nproc 2>/dev/null || echo 2) + 2))}
cd "$(dirname "$0")/.." || exit 2

candidates() {
    local minor
    for minor in 11 12 13 14 15; do
        command -v "python3.$minor"
    done
    command -v "${PYTHON:-python3}"
    local each
    for each in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python; do
        [ -x "$each" ] && echo "$each"
    done
}

# "3.12 /path/to/python" for one that runs and is new enough; a shim without a version behind it does not run.
describe() {
    "$1" -c 'import sys, venv
if sys.version_info < (3, 11): sys.exit(1)
print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null
}

found=$(candidates | while read -r each; do describe "$each"; done | sort -V -k1,1 -u)
if [ -z "$found" ]; then
    echo "no Python from 3.11 up was found" >&2
    exit 2
fi

# As `make test` sets up: with uv, and with pip where only pip knows the way to an index.
set_up() {
    local python=$1 venv=$2
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || return
    "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1" uv || return
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --editable . --group test ||
        "$venv/bin/python" -m pip install --quiet --editable . --group test
}

summary="" failed=0
while read -r version python <&3; do
    venv=".venvs/$version"
    echo "== Python $version ($python)"
    if ! set_up "$python" "$venv"; then
        outcome="could not be set up"
        failed=1
    elif "$venv/bin/python" -m pytest -n "$JOBS" --dist worksteal "$@"; then
        outcome="passed"
    else
        outcome="FAILED"
        failed=1
    fi
    summary+="$(printf '%-6s %-22s %s' "$version" "$outcome" "$("$venv/bin/python" -V 2>&1)")"$'\n'
done 3<<<"$found"

echo
echo "$summary"
exit $failed
