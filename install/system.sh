# shellcheck shell=bash
# The system service: install, upgrade in place, uninstall. Sourced by install.sh.

# With --prefix everything lies under it and nothing outside is touched; otherwise in the places of the system.
places() {
    program=${prefix:-/opt/headrace}
    venv=$program/venv
    command_link=${prefix:-/usr/local}/bin/headrace
    etc=$prefix/etc/headrace
    var=$prefix/var/lib/headrace
    units=$prefix/etc/systemd/system
    account=
    [ -n "$prefix" ] || account=headrace
    if [ -z "$prefix$dry_run" ] && [ "$(id -u)" != 0 ]; then
        fail "the system service needs root: sudo ./install.sh (or ./install.sh try, which needs none)"
    fi
}

install_system() {
    places
    install_program
    install_account
    install_state
    install_units
    start_service
    print_places
}

install_program() {
    local python extra build=$program/build
    python=$(system_python)
    extra=$(runtime_extra)
    step mkdir -p "$program" "${command_link%/*}"
    make_venv "$python" "$venv"
    # Built from a copy: the build leaves files beside its sources, and stale ones would be packed the next time.
    step rm -rf "$build"
    step mkdir "$build"
    step cp -R "$root"/{pyproject.toml,setup.py,README.md,LICENSE,appliance,proxy,engine} "$build"
    install_packages "$venv" "$extra" --upgrade "${build}[$extra]"
    compile_program "$build" "$venv"
    step rm -rf "$build"
    step ln -sfn "$venv/bin/headrace" "$command_link"
}

# The service runs under its own account, which cannot see an interpreter in somebody's home directory.
system_python() {
    if [ -n "$account" ]; then
        PATH=/usr/local/bin:/usr/bin:/bin find_python
    else
        find_python
    fi
}

install_account() {
    [ -n "$account" ] || return 0
    getent passwd "$account" >/dev/null ||
        step useradd --system --user-group --home-dir "$var" --no-create-home --shell /usr/sbin/nologin "$account"
}

# Models, certificate, key and configuration: each only where it is missing.
install_state() {
    local name names=()
    step mkdir -p "$etc" "$var/models"
    for name in "${models[@]}"; do
        if [ -f "$root/.headrace/models/$name/model.yaml" ] && [ ! -e "$var/models/$name" ]; then
            step rm -rf "$var/models/$name.new" # of a run that was broken off: cp would copy into it
            step cp -R "$root/.headrace/models/$name" "$var/models/$name.new"
            step mv "$var/models/$name.new" "$var/models/$name"
        else
            pull_model "$venv/bin/headrace" "$var/models" "$name"
        fi
    done
    for name in $(host_names); do names+=(--host "$name"); done
    step "$venv/bin/headrace" cert local --dir "$etc/tls" "${names[@]}"
    if [ ! -e "$etc/keys.yaml" ]; then
        say "the first API key, shown this once (only its hash is stored):"
        step "$venv/bin/headrace" keys add --id first --file "$etc/keys.yaml"
    fi
    write_configuration "$root/install/system.yaml.in" "$etc/headrace.yaml" "ETC=$etc" "VAR=$var"
    if [ -n "$account" ]; then
        step chown -R "root:$account" "$etc"
        step chmod -R u=rwX,g=rX,o= "$etc"
        step chmod 600 "$etc/tls/ca.key" # the service never needs it
        step chown -R "$account:$account" "$var"
        step runuser -u "$account" -- "$venv/bin/headrace" check -c "$etc/headrace.yaml"
    else
        step "$venv/bin/headrace" check -c "$etc/headrace.yaml"
    fi
}

host_names() {
    { hostname; hostname -f; hostname -I | tr ' ' '\n'; } 2>/dev/null | grep . | sort -u
}

install_units() {
    local unit text
    step mkdir -p "$units"
    for unit in "$root"/systemd/headrace.*; do
        text=$(sed -e "s|/opt/headrace|$program|g" -e "s|/etc/headrace|$etc|g" -e "s|/var/lib/headrace|$var|g" "$unit")
        write_whole "$units/${unit##*/}" "$text" "$unit"
    done
}

systemd_runs() { [ -z "$prefix" ] && [ -d /run/systemd/system ]; }

start_service() {
    if systemd_runs; then
        step systemctl daemon-reload
        step systemctl enable headrace.socket headrace.service
        # A socket unit cannot be started under a running service; at an upgrade it holds the ports already.
        if ! systemctl is-active --quiet headrace.service; then
            step systemctl start headrace.socket ||
                fail "port 80 or 443 is taken: free it and run this again, or change the listeners in" \
                    "$etc/headrace.yaml, then systemctl disable headrace.socket and systemctl start headrace.service"
        fi
        step systemctl restart headrace.service || fail "it does not start: journalctl -u headrace says why"
    elif [ -n "$prefix" ]; then
        say "units are in $units and not enabled, because --prefix touches nothing outside. Start it by hand with:"
        say "  $venv/bin/headrace serve -c $etc/headrace.yaml"
    else
        say "systemd is not running here: the units are installed, but nothing was started. Start it by hand with:"
        say "  $venv/bin/headrace serve -c $etc/headrace.yaml"
    fi
}

print_places() {
    say "configuration: $etc/headrace.yaml   models: $var/models"
    say "try it: curl --cacert $etc/tls/ca.pem -H 'Authorization: Bearer KEY' https://$(hostname)/v1/models"
}

uninstall_system() {
    places
    if systemd_runs; then
        step systemctl disable --now headrace.service headrace.socket || say "the service was not running"
    fi
    step rm -f "$units"/headrace.service "$units"/headrace.socket "$command_link"
    step rm -rf "$venv"
    [ -n "$dry_run" ] || say "removed: the program in $program and the units in $units"
    [ -n "$prefix" ] || step rmdir --ignore-fail-on-non-empty "$program"
    systemd_runs && step systemctl daemon-reload
    if [ -n "$purge" ]; then
        step rm -rf "$etc" "$var"
        if [ -n "$account" ] && getent passwd "$account" >/dev/null; then step userdel "$account"; fi
    else
        say "kept: $etc (configuration, certificate, keys) and $var (models); --uninstall --purge removes them, too"
    fi
}
