"""Questions of a known length in tokens, whatever tokenizer and chat template the model has.

Owns what the language model is asked; finds the length by asking the server, which counts the prompt in its usage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.json_client import JsonClient
from bench.sse_client import Server

_STORY = "Tell me a very long story about a mill by the river and the people who lived there."
_OPENINGS = (
    "Please", "Now", "Then", "Here", "First", "Today", "Well", "Good", "Dear", "Still",
    "Maybe", "Once", "Again", "Hello", "There", "Just", "Next", "Later", "Soon", "Yes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions to one model that all have the same number of tokens, its chat template included."""

    model: str
    padding: int

    def body(self, max_tokens: int, number: int = 0) -> dict[str, Any]:
        """A greedy request; those with other numbers (up to twenty) share nothing of the question's beginning."""
        question = f"{_OPENINGS[number % len(_OPENINGS)]} {_STORY}{' very' * self.padding}"
        messages = [{"role": "user", "content": question}]
        return {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}


async def of_length(server: Server, model: str, prompt_tokens: int) -> Questions:
    """Questions that ``server`` counts as ``prompt_tokens``. Raises SystemExit when no padding makes that length."""
    client = await JsonClient.connect(server)
    for padding in range(prompt_tokens):
        questions = Questions(model, padding)
        answer = await client.post("/v1/chat/completions", questions.body(max_tokens=1))
        if answer["usage"]["prompt_tokens"] == prompt_tokens:
            client.close()
            return questions
    raise SystemExit(f"no padding makes a prompt of {prompt_tokens} tokens")
