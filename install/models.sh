# shellcheck shell=bash
# The default models and the configuration files made from templates. Sourced by install.sh.

models=(smollm2-135m-instruct all-minilm-l6-v2)

# pull_models HEADRACE DIRECTORY : puts every default model into DIRECTORY that is not there yet.
pull_models() {
    local name
    for name in "${models[@]}"; do pull_model "$1" "$2" "$name"; done
}

# pull_model HEADRACE DIRECTORY NAME
pull_model() {
    local form=()
    [ "$(runtime_extra)" != gpu ] || form=(--weights exact) # the product of the catalogue's eight bits is the CPU's alone
    [ -f "$2/$3/model.yaml" ] || step "$1" model pull "$3" --dir "$2" ${form[@]+"${form[@]}"}
}

# write_configuration TEMPLATE FILE KEY=VALUE... : fills @KEY@ in, unless FILE is there: it belongs to the operator then.
write_configuration() {
    local template=$1 file=$2 pair text
    shift 2
    [ ! -e "$file" ] || return 0
    text=$(<"$template")
    for pair in "$@"; do
        text=${text//"@${pair%%=*}@"/"${pair#*=}"}
    done
    write_whole "$file" "$text" "$template"
}

# write_whole FILE TEXT TEMPLATE : writes FILE to its end or not at all.
write_whole() {
    if [ -n "$dry_run" ]; then
        say "would write: $1 from ${3#"$root"/}"
        return
    fi
    printf '%s\n' "$2" >"$1.new" || fail "cannot write $1.new: see the message above"
    mv "$1.new" "$1"
}
