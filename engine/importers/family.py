"""The families of models that the decode graph computes, their sizes and the tensors that each needs.

llama, mistral, qwen2 and qwen3 are one model with small differences: qwen2 adds biases to queries, keys and values,
qwen3 norms each head of queries and keys, and GGUF's llama has the rows of both so arranged that neighbours are
rotated together. Tensors bear the names that GGUF gives them. Reads nothing.
"""

from dataclasses import dataclass

from engine.importers.rope import Rotary

MAX_SIZE = 1 << 20  # of any of a model's dimensions; a file that says more is damaged

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What the decode graph must know of one model."""

    family: str  # one of FAMILIES
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab_size: int
    context: int  # tokens
    norm_epsilon: float
    rotary: Rotary
    interleaved: bool  # whether neighbours of a head are rotated together, or else its halves
    biased: tuple[str, ...] = ()  # the projections of a layer that add a bias, such as attn_q

    @property
    def head_dim(self) -> int:
        """The size of a head of queries, keys and values."""
        return self.rotary.head_dim

    @property
    def head_norms(self) -> bool:
        """Whether each head of queries and keys is normed before it is rotated."""
        return self.family == "qwen3"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The name and shape (rows, columns) of every tensor that the model needs."""
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocab_size, self.hidden),
            "output_norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in self._layer().items()}
        return shapes

    def optional_tensors(self) -> dict[str, tuple[int, ...]]:
        """Tensors that change the model when they are there: an untied head, and divisors of the rotary frequencies."""
        return {"output.weight": (self.vocab_size, self.hidden), "rope_freqs.weight": (self.head_dim // 2,)}

    def _layer(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        weights = {
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
            "ffn_gate": (self.feed_forward, self.hidden),
            "ffn_up": (self.feed_forward, self.hidden),
            "ffn_down": (self.hidden, self.feed_forward),
        }
        vectors = {"attn_norm.weight": self.hidden, "ffn_norm.weight": self.hidden}
        vectors |= {f"{name}.bias": weights[name][0] for name in self.biased}
        if self.head_norms:
            vectors |= {"attn_q_norm.weight": self.head_dim, "attn_k_norm.weight": self.head_dim}
        return {f"{name}.weight": shape for name, shape in weights.items()} | {
            name: (size,) for name, size in vectors.items()
        }
