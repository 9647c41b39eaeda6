"""The weights of a GGUF file as a Hugging Face folder in float32, for peers that read no GGUF.

    .headrace/peers/torch/bin/python bench/peer_weights.py FILE.gguf FOLDER

Every block becomes the numbers that it stands for, so that a peer's own quantisation starts from what ours starts from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = model.config
    state = model.state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    config.architectures = [type(model).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # they are plain numbers now
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weight.contiguous() for name, weight in state.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
