"""The greedy answer of a model by transformers, step by step without a cache; runs in the tree.

``python greedy.py MODEL REQUEST``. Prints JSON: the tokens, by how much the best of each step led
the second at least, and the tokens when one layer adds nothing, for each layer.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
)


def greedy(model: Any, tokens: list[int], count: int) -> tuple[list[int], float]:
    """The next `count` tokens after `tokens`, and the least lead of a best one."""
    answer: list[int] = []
    lead = float("inf")
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([tokens + answer])).logits[0, -1]
            best, second = logits.topk(2).values.tolist()
            lead = min(lead, best - second)
            answer.append(int(logits.argmax()))
    return answer, lead


def main(folder: str, request: str) -> None:
    """Print what the module's docstring says."""
    asked = json.loads(request)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokens = tokenizer(asked["prompt"], add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answer, lead = greedy(model, tokens, asked["max_tokens"])
    without = {}
    layers = list(model.model.layers)
    for number in range(len(layers)):
        rest = [layer for layer in layers if layer is not layers[number]]
        model.model.layers = torch.nn.ModuleList(rest)
        without[number] = greedy(model, tokens, asked["max_tokens"])[0]
    print(json.dumps({"token_ids": answer, "least_lead": lead, "without_layer": without}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
