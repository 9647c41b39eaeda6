# shellcheck shell=bash
# `install.sh try`: from a checkout to a model that answers over TLS. Sourced by install.sh.

run_try() {
    local home=${HEADRACE_HOME:-$root/.headrace} venv=$root/.venv port
    check_port "${HEADRACE_PORT:-8443}"
    install_checkout "$venv" "$(runtime_extra)"
    mkdir -p "$home/models" || fail "cannot make $home: give another place in HEADRACE_HOME"
    home=$(cd "$home" && pwd) # the configuration would take a relative path as relative to itself
    pull_models "$venv/bin/headrace" "$home/models"
    "$venv/bin/headrace" cert local --dir "$home/tls" >/dev/null
    write_try_configuration "$home" "${HEADRACE_PORT:-8443}" "$home/headrace.yaml"

    port=$(configured_port "$home/headrace.yaml")
    [ "${HEADRACE_PORT:-$port}" = "$port" ] ||
        say "HEADRACE_PORT=$HEADRACE_PORT changes nothing: $home/headrace.yaml is there already; change the address in it"
    # The demonstration is no child of the server: it watches this process, which becomes the server by exec, so that
    # Ctrl-C reaches the supervisor first and alone decides how all ends. It would take whoever has the port for ours.
    if [ -n "$port" ] && ! is_taken "$port"; then
        ("$venv/bin/python" -m appliance.demo --server-pid $$ --url "https://127.0.0.1:$port" --ca "$home/tls/ca.pem" \
            --model "${models[0]}" &)
    fi
    exec "$venv/bin/headrace" serve -c "$home/headrace.yaml"
}

# write_try_configuration HOME PORT FILE
write_try_configuration() {
    local quoted=${1//"'"/"''"} # as YAML wants it between single quotes
    write_configuration "$root/install/try.yaml.in" "$3" "HOME=$quoted" "PORT=$2"
}

check_port() {
    [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] && [ "$1" -le 65535 ] || fail "HEADRACE_PORT=$1 is no port: give a number from 1 to 65535"
}

# configured_port FILE : prints the port of its first listener on 127.0.0.1; nothing where the operator has none.
configured_port() {
    sed -n 's/^ *-\{0,1\} *address: 127\.0\.0\.1:\([0-9]\{1,5\}\)$/\1/p' "$1" | head -n 1
}

is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
