"""What the plan had to assume about a model, said with every decision."""

from __future__ import annotations

from vllm_cluster.plan.memory.facts import ModelFacts
from vllm_cluster.plan.memory.placement import Place, place_of
from vllm_cluster.plan.memory.split import split_of
from vllm_cluster.plan.memory.text import gib

#: Model types whose classes were read in vLLM: what they split, and on which stage it lies.
READ_TYPES = frozenset(
    {
        *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "mixtral"),
        *("qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "kimi_k2", "bert", "xlm-roberta"),
    }
)
#: Unknown tensors below this share of the weights are not worth a sentence.
WORTH_SAYING = 0.001


def assumptions(model: ModelFacts) -> tuple[str, ...]:
    """Sentences; empty for a model whose parts are all known."""
    said = []
    if model.model_type not in READ_TYPES:
        said.append(
            f"model type {model.model_type!r} is not among those whose code was read: its "
            "embedding and head are taken to lie on the first and the last stage"
        )
    unknown = [
        tensor
        for tensor in model.tensors
        if not split_of(tensor)[1] and place_of(model, tensor) is not Place.NOWHERE
    ]
    size = sum(tensor.stored_bytes for tensor in unknown)
    if size > WORTH_SAYING * model.stored_bytes:
        said.append(
            f"{len(unknown)} tensors of {gib(size)} ({unknown[0].name} …) are counted whole on "
            "every GPU, because how they are divided is not known"
        )
    return tuple(said)
