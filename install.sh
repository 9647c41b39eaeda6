#!/usr/bin/env bash
# Installs Headrace: to try it, to test it, or as a system service. `./install.sh --help` says how.
#
# Every step looks first at what is there already, so that a run that was broken off is simply run again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
runtime=auto # or cpu, gpu
dry_run='' prefix='' purge=''

# shellcheck source=install/python.sh
. "$root/install/python.sh"
# shellcheck source=install/models.sh
. "$root/install/models.sh"
# shellcheck source=install/try.sh
. "$root/install/try.sh"
# shellcheck source=install/compile.sh
. "$root/install/compile.sh"
# shellcheck source=install/test.sh
. "$root/install/test.sh"
# shellcheck source=install/system.sh
. "$root/install/system.sh"

usage() {
    cat <<'USAGE'
usage:
  ./install.sh try [--cpu | --gpu]      run Headrace from this checkout, in the foreground; needs no root
  ./install.sh test [--cpu | --gpu]     install what the tests need and run them all; needs no root
  ./install.sh compile                  compile the request path into build/compiled, for bench/; needs no root
  sudo ./install.sh [options]           install or upgrade the system service
      --prefix DIR    put everything under DIR and touch nothing outside it (root is not needed then)
      --uninstall     remove program and units; configuration, keys and models stay
      --purge         with --uninstall: remove those, too
      --dry-run       print each step and do nothing
      --cpu, --gpu    choose the runtime; otherwise by whether nvidia-smi lists a device

try keeps its files in ./.headrace (or in $HEADRACE_HOME) and the program in ./.venv; delete both to start afresh.
The first try takes port 8443, or $HEADRACE_PORT; later ones take what ./.headrace/headrace.yaml says.
USAGE
}

say() { printf '%s\n' "$*"; }

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# Runs a command that changes something; with --dry-run prints it instead.
step() {
    if [ -n "$dry_run" ]; then
        printf 'would run: %s\n' "$(printf '%q ' "$@")"
    else
        "$@"
    fi
}

main() {
    local command=system
    case ${1-} in try | test | compile) command=$1; shift ;; esac
    while [ $# -gt 0 ]; do
        case $1 in
            --cpu | --gpu) runtime=${1#--} ;;
            --dry-run) dry_run=1 ;;
            --uninstall) command=uninstall ;;
            --purge) purge=1 ;;
            --prefix)
                case ${2-} in
                    *[!A-Za-z0-9/._+-]*) fail "--prefix takes letters, digits and / . _ + - alone: the units have to name it" ;;
                    /?*) prefix=${2%/} ;;
                    *) fail "--prefix needs an absolute directory, like --prefix /srv/headrace" ;;
                esac
                shift
                ;;
            -h | --help) usage; exit 0 ;;
            *) usage >&2; fail "unknown argument: $1" ;;
        esac
        shift
    done
    if [ "$command" = try ] || [ "$command" = test ] || [ "$command" = compile ]; then
        [ -z "$dry_run$prefix$purge" ] || fail "$command takes only --cpu and --gpu"
    fi
    [ -z "$purge" ] || [ "$command" = uninstall ] || fail "--purge goes with --uninstall only"
    [ "$(uname -s)" = Linux ] || fail "Headrace runs on Linux; this is $(uname -s)"
    getconf GNU_LIBC_VERSION >/dev/null 2>&1 || fail "Headrace needs a Linux with glibc: onnxruntime has no wheels for others"

    case $command in
        try) run_try ;;
        test) run_tests ;;
        compile) run_compile ;;
        system) install_system ;;
        uninstall) uninstall_system ;;
    esac
}

main "$@"
