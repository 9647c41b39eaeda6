# shellcheck shell=bash
# The interpreter, virtual environments and the packages in them. Sourced by install.sh.

# Prints the newest Python between 3.11 and 3.13 that runs and can make virtual environments. Of two of one version the
# distribution's comes first: it gets security updates, and is built with optimisations that a self-compiled one often
# lacks (a proxied request takes 7 to 20 % less processor time on it).
find_python() {
    local name python without_venv=
    for name in python3.13 python3.12 python3.11 python3; do
        while read -r python; do
            "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
            if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
                echo "$python"
                return
            fi
            without_venv=${without_venv:-$name}
        done < <(in_path "$name")
    done
    [ -z "$without_venv" ] ||
        fail "$without_venv cannot make virtual environments: install its venv module" \
            "(Debian, Ubuntu: apt-get install $without_venv-venv) and run this again"
    fail "no Python 3.11 or newer found: install one (Debian, Ubuntu: apt-get install python3 python3-venv) and run this again"
}

# in_path NAME : every program of that name in PATH, those of the distribution first.
in_path() {
    local found=() distribution=() others=() python
    mapfile -t found < <(type -ap "$1")
    for python in ${found[@]+"${found[@]}"}; do
        case $python in /usr/bin/*) distribution+=("$python") ;; *) others+=("$python") ;; esac
    done
    for python in ${distribution[@]+"${distribution[@]}"} ${others[@]+"${others[@]}"}; do
        printf '%s\n' "$python"
    done
}

# Prints the extra that brings the runtime: gpu where the box has a device or --gpu was given, else cpu.
runtime_extra() {
    case $runtime in
        auto) if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo gpu; else echo cpu; fi ;;
        *) echo "$runtime" ;;
    esac
}

# One word that changes whenever what is installed would: with the dependencies and with the place of the checkout.
packages_key() {
    { cat "$root/pyproject.toml"; printf '%s\n' "$root"; } | sha256sum | cut -d' ' -f1
}

# is_current VENV KEY EXTRA... : whether all of that was installed to its end, and the interpreter is still there.
is_current() {
    local venv=$1 word
    shift
    [ -x "$venv/bin/python" ] || return 1
    for word in "$@"; do
        grep -qxF -- "$word" "$venv/installed" 2>/dev/null || return 1
    done
}

# install_checkout VENV EXTRA... : makes VENV if needed and installs the checkout into it, editable, unless it is current.
install_checkout() {
    local venv=$1 key python
    shift
    key=$(packages_key)
    ! is_current "$venv" "$key" "$@" || return 0
    say "installing into $venv"
    python=$(find_python)
    # A later try takes away nothing that the tests need.
    ! grep -qxF dev "$venv/installed" 2>/dev/null || set -- "$@" dev
    make_venv "$python" "$venv"
    install_packages "$venv" "$(runtime_of "$@")" --editable "${root}[$(IFS=,; echo "$*")]"
    # Where the environment forbids writing bytecode, every start would compile the project again.
    (cd "$root" && "$venv/bin/python" -m compileall -q appliance proxy engine) || say "no bytecode written: starts take longer"
    printf '%s\n' "$key" "$@" >"$venv/installed"
}

runtime_of() {
    case " $* " in *' gpu '*) echo gpu ;; *) echo cpu ;; esac
}

make_venv() {
    local python=$1 venv=$2
    # Another interpreter would leave what was made by this one unusable, and running programs without their modules.
    if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$venv/bin/python
    fi
    step rm -f "$venv/installed" # until all is in place again, nothing here counts as current
    step "$python" -m venv "$venv" || fail "cannot make a virtual environment in $venv: see the message above"
}

# install_packages VENV cpu|gpu PIP-ARGUMENT...
install_packages() {
    local venv=$1 other=onnxruntime-gpu
    [ "$2" = cpu ] || other=onnxruntime
    shift 2
    # Both distributions own the same files: whichever is removed takes the other's with it, so neither may stay.
    if "$venv/bin/python" -m pip show --quiet "$other" 2>/dev/null; then
        step "$venv/bin/python" -m pip uninstall --quiet --yes onnxruntime onnxruntime-gpu
    fi
    step "$venv/bin/python" -m pip install --disable-pip-version-check "$@" ||
        fail "pip could not install the packages: see its message above, and run this again (what was loaded is kept)"
}
