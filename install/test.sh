# shellcheck shell=bash
# `install.sh test`: what the tests need, the checks, then the whole suite. Sourced by install.sh.

run_tests() {
    local venv=$root/.venv
    cd "$root"
    name_missing_tools
    install_checkout "$venv" "$(runtime_extra)" dev
    pull_models "$venv/bin/headrace" "$root/.headrace/models"
    install_sslyze
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check .
    "$venv/bin/mypy"
    run_both_halves "$venv/bin/python"
    # The same sources compiled, as the system's program runs them: what goes over sockets.
    if can_compile "$venv/bin/python"; then
        HEADRACE_COMPILE_LEVEL=0 compile_checkout "$venv" "$root/build/tested"
        cd "$root/build/tested"
        PYTHONPATH=$root/build/tested exec "$venv/bin/python" -m pytest tests/wire
    fi
    say "no C compiler or no Python headers here: the compiled request path was not tested"
}

# The suite in two processes beside each other, as it waits more than it computes: what the engine does, and all else. The
# second one's words come when it has ended, so that they do not stand among the first one's. Ctrl-C ends both: a shell's
# background commands would not hear it, and the first one's end be followed by minutes of waiting for the second.
run_both_halves() {
    local python=$1 engine=(tests/engine tests/e2e tests/bench) log=$root/build/test-engine.log half first=0 second=0
    mkdir -p "$root/build"
    (trap - INT && exec "$python" -m pytest "${engine[@]}") >"$log" 2>&1 &
    half=$!
    trap 'kill -INT "$half" 2>/dev/null || :' EXIT
    "$python" -m pytest "${engine[@]/#/--ignore=}" || first=$?
    say "waiting for the other half: ${engine[*]}"
    wait "$half" || second=$?
    trap - EXIT
    cat "$log"
    [ "$first" = 0 ] && [ "$second" = 0 ] || fail "tests failed: pytest ended with $first and, for ${engine[*]}, with $second"
}

# The scanner brings a cryptography and a pydantic of its own: an environment beside ours. One test asks for it by SSLYZE.
install_sslyze() {
    local venv=$root/.venv-sslyze
    if [ ! -x "$venv/bin/sslyze" ]; then
        make_venv "$(find_python)" "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'sslyze>=6.2,<7' ||
            { say "sslyze cannot be installed here: the test that asks it is skipped"; return 0; }
    fi
    export SSLYZE=$venv/bin/sslyze
}

# What only root can install is named, all of it at once, and never installed from here.
name_missing_tools() {
    local missing=() wanted
    for wanted in cc:gcc openssl:openssl systemd-analyze:systemd taskset:util-linux nginx:nginx; do
        command -v "${wanted%%:*}" >/dev/null || missing+=("${wanted#*:}")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        say "missing here: ${missing[*]}. The tests that use them fail or are skipped; with root: apt-get install ${missing[*]}"
    fi
}
