# shellcheck shell=bash
# Compiling the request path (setup.py): wanted where speed counts, needed nowhere. Sourced by install.sh.

# can_compile PYTHON: a C compiler is here, and that interpreter's headers.
can_compile() {
    command -v cc >/dev/null &&
        [ -f "$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/Python.h" ]
}

compiler=('mypy>=2,<3' 'setuptools>=77,<90' wheel)

# `install.sh compile`: beside the checkout's sources, in build/compiled, a copy whose request path is compiled. What
# runs there runs compiled; the checkout itself stays as it is, so that no edit is ever hidden by an older binary.
run_compile() {
    local venv=$root/.venv
    install_checkout "$venv" "$(runtime_extra)" dev
    can_compile "$venv/bin/python" || fail "compiling needs a C compiler and Python's headers: apt-get install gcc python3-dev"
    compile_checkout "$venv" "$root/build/compiled"
    say "compiled into $root/build/compiled; bench/ uses it as long as the sources are the same"
}

# compile_checkout VENV COPY
compile_checkout() {
    local venv=$1 copy=$2 key
    key=$(cd "$root" && { cat setup.py; find proxy -name '*.py' | sort | xargs cat; "$venv/bin/python" -VV; } | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$copy/key" 2>/dev/null)" != "$key" ]; then
        say "compiling the request path: about three minutes, and 1.3 GB of memory"
        rm -rf "$copy"
        mkdir -p "$copy"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${compiler[@]}"
        cp -R "$root"/{setup.py,pyproject.toml,README.md,appliance,proxy,engine} "$copy"
        (cd "$copy" && HEADRACE_COMPILE=1 "$venv/bin/python" setup.py --quiet build_ext --inplace >build.log 2>&1) ||
            fail "the compiler failed: see $copy/build.log. Everything runs without it, too"
        printf '%s\n' "$key" >"$copy/key"
    fi
    rm -rf "$copy"/{tests,bench,appliance,engine} # of these nothing is compiled
    cp -R "$root"/{tests,bench,conf,appliance,engine} "$copy"
}

# compile_program BUILD VENV: the same for the system's program; without a compiler it runs interpreted.
compile_program() {
    local build=$1 venv=$2
    [ "${HEADRACE_COMPILE:-1}" != 0 ] || return 0
    if [ -z "$dry_run" ] && ! can_compile "$venv/bin/python"; then
        say "no C compiler or no Python headers here: the request path runs interpreted, at about half the speed." \
            "With gcc and python3-dev, run this again"
        return 0
    fi
    say "compiling the request path: about three minutes, and 1.3 GB of memory"
    step "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$build/tools" "${compiler[@]}"
    if step build_wheel "$build" "$venv"; then
        step install_wheel "$build" "$venv"
    else
        cp "$build/build.log" "$program/build.log"
        say "the compiler failed (see $program/build.log): the request path runs interpreted, at about half the speed"
    fi
}

build_wheel() {
    (cd "$1" && PYTHONPATH=tools HEADRACE_COMPILE=1 "$2/bin/python" setup.py --quiet bdist_wheel --dist-dir wheels) >"$1/build.log" 2>&1
}

install_wheel() {
    "$2/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$1"/wheels/*.whl
}
