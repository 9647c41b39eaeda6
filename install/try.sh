# shellcheck shell=bash
# `install.sh try`: from a checkout to a model that answers over TLS. Sourced by install.sh.

run_try() {
    local home=${HEADRACE_HOME:-$root/.headrace} port=${HEADRACE_PORT:-8443} venv=$root/.venv
    install_checkout "$venv" "$(runtime_extra)"
    mkdir -p "$home/models" || fail "cannot make $home: give another place in HEADRACE_HOME"
    pull_models "$venv/bin/headrace" "$home/models"
    "$venv/bin/headrace" cert local --dir "$home/tls" >/dev/null
    write_configuration "$root/install/try.yaml.in" "$home/headrace.yaml" "HOME=$home" "PORT=$port"

    # The demonstration is no child of the server: it watches this process, which becomes the server by exec, so that
    # Ctrl-C reaches the supervisor first and alone decides how all ends.
    ("$venv/bin/python" -m appliance.demo --server-pid $$ --url "https://127.0.0.1:$port" --ca "$home/tls/ca.pem" \
        --model "${models[0]}" &)
    exec "$venv/bin/headrace" serve -c "$home/headrace.yaml"
}
