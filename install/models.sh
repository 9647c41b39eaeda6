# shellcheck shell=bash
# The default models and the configuration files made from templates. Sourced by install.sh.

models=(smollm2-135m-instruct all-minilm-l6-v2)

# pull_models HEADRACE DIRECTORY : puts every default model into DIRECTORY that is not there yet.
pull_models() {
    local headrace=$1 directory=$2 name
    for name in "${models[@]}"; do
        if [ ! -f "$directory/$name/model.yaml" ]; then
            step "$headrace" model pull "$name" --dir "$directory"
        fi
    done
}

# write_configuration TEMPLATE FILE KEY=VALUE... : fills @KEY@ in, unless FILE is there: it belongs to the operator then.
write_configuration() {
    local template=$1 file=$2 pair substitutions=()
    shift 2
    [ ! -e "$file" ] || return 0
    for pair in "$@"; do
        substitutions+=(-e "s|@${pair%%=*}@|${pair#*=}|g")
    done
    render "$template" "$file" "${substitutions[@]}"
}

# render TEMPLATE FILE SED-ARGUMENT... : writes FILE whole or not at all.
render() {
    local template=$1 file=$2
    shift 2
    if [ -n "$dry_run" ]; then
        say "would write: $file from ${template#"$root"/}"
        return
    fi
    sed "$@" "$template" >"$file.new" || fail "cannot write $file.new: see the message above"
    mv "$file.new" "$file"
}
