#!/bin/sh
# Makes the peers of bench/batching.py: an environment for each, in .headrace/peers or in the folder that HEADRACE_PEERS
# names, and one for MLPerf's LoadGen, which asks them. What is there already is left as it is. All of it is about 700 MiB.
#
#     bench/batching_peers.sh
set -eu
here=$(dirname "$(realpath "$0")")
peers=${HEADRACE_PEERS:-$here/../.headrace/peers}
mkdir -p "$peers"
cd "$peers"

environment() { # NAME PACKAGE...: an environment with these packages
    name=$1
    shift
    [ -e "$name/complete" ] && return
    "${PYTHON:-python3}" -m venv "$name"
    "$name/bin/pip" install --quiet "$@"
    touch "$name/complete"
}

environment fastapi fastapi==0.165.0 uvicorn==0.54.0 uvloop httptools onnxruntime==1.32.0 tokenizers numpy
environment litserve litserve==0.2.19 onnxruntime==1.32.0 tokenizers numpy
environment mosec mosec==0.9.8 onnxruntime==1.32.0 tokenizers numpy
environment loadgen mlcommons-loadgen==6.0.17 uvloop
