#!/bin/sh
# Makes the peers of bench/llm.py and bench/loading.py: an environment for each and its form of the default model's
# weights, in .headrace/peers or in the folder that HEADRACE_PEERS names. What is there already is left as it is.
# llama.cpp is compiled for this machine: with one core that takes about ten minutes. All of it is about 9 GiB.
#
#     bench/llm_peers.sh FILE.gguf
set -eu
file=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
peers=${HEADRACE_PEERS:-$here/../.headrace/peers}
mkdir -p "$peers/weights/gguf" "$peers/weights/openvino-gguf"
cd "$peers"

environment() { # NAME PACKAGE...: an environment with these packages
    name=$1
    shift
    [ -e "$name/complete" ] && return
    "${PYTHON:-python3}" -m venv "$name"
    "$name/bin/pip" install --quiet "$@"
    touch "$name/complete"
}

export CMAKE_ARGS="-DGGML_NATIVE=ON"
environment llama-cpp llama-cpp-python==0.3.36 numpy
environment genai onnxruntime-genai==0.18.0 numpy
environment openvino openvino-genai==2026.4.1.0 numpy
# nncf and optimum write what OpenVINO reads
environment openvino-export optimum-intel nncf openvino==2026.4.1
environment torch "torch==2.13.0" transformers==5.24.0 gguf safetensors onnxruntime-genai==0.18.0 onnx-ir onnx

for copy in gguf openvino-gguf; do
    [ -e "weights/$copy/model.gguf" ] || cp "$file" "weights/$copy/model.gguf"
done
[ -e weights/float32/config.json ] || torch/bin/python "$here/peer_weights.py" "$file" weights/float32
build() { # FOLDER PRECISION OPTION...: onnxruntime-genai's own builder, from the same numbers
    [ -e "weights/$1/genai_config.json" ] && return
    folder=$1 precision=$2
    shift 2
    torch/bin/python -m onnxruntime_genai.models.builder -i weights/float32 -o "weights/$folder" -p "$precision" -e cpu \
        --extra_options block_size=32 accuracy_level=4 "$@"
}
build genai-int8 int8 is_symmetric=false
build genai-int4 int4 op_types_to_quantize=MatMul algo_config=k_quant
[ -e weights/openvino-int8/openvino_model.xml ] || openvino-export/bin/optimum-cli export openvino \
    --model weights/float32 --task text-generation-with-past --weight-format int8 weights/openvino-int8
