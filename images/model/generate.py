"""Write the tiny model: tokenizer, weights, configuration. Runs inside the image's tree.

``python generate.py FOLDER``. The architecture is Llama's: 4 layers, so that it splits into 2 or 4
pipeline stages; 4 heads and 2 key/value heads, so that it splits into 2 tensor ranks.

The weights are random and large: every layer turns the answer, so a stage that is lost, doubled
or fed with wrong numbers shows in the answer. They are float32 and the output layer
is scaled up, so that the best token leads by far more than what another order of summation moves;
the same prompt gives the same answer on one process and on any split.
Only whole words can win (all other rows of the output layer are zero), so that people can read it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np  # type: ignore[import-not-found]
from safetensors.numpy import save_file  # type: ignore[import-not-found]
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

# Of the first 90 seeds the one whose answers to four prompts are the most varied and whose best
# token leads the second by more than 0.1 in each of 32 steps; float32 noise is below 0.0001.
SEED = 43
VOCABULARY = 512
HIDDEN = 128
INNER = 256
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD = HIDDEN // HEADS
LOGIT_SCALE = 8.0  # standard deviation of the logits
SPECIAL = ("<unk>", "<s>", "</s>")


def train_tokenizer(text: str) -> Tokenizer:
    """Return a byte-level BPE tokenizer of VOCABULARY tokens, trained on ``text``."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(
            f"the text gives {tokenizer.get_vocab_size()} tokens, {VOCABULARY} are wanted"
        )
    return tokenizer


def speakable(tokenizer: Tokenizer, words: frozenset[str]) -> list[int]:
    """Return the ids of the tokens that are a blank and a whole word of ``words``."""
    decoded = ((token, tokenizer.decode([token])) for token in range(VOCABULARY))
    return [token for token, text in decoded if text[:1] == " " and text[1:] in words]


def weights(can_win: list[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the model's tensors by the names that Llama checkpoints give them.

    numpy's PCG64 and its ziggurat give the same numbers on every processor; torch's generator
    takes other paths on other vector units.
    """
    random = np.random.Generator(np.random.PCG64(SEED))

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        drawn = random.standard_normal((rows, columns), dtype=np.float32)
        return drawn * np.float32(gain / columns**0.5)

    ones = np.ones(HIDDEN, dtype=np.float32)
    yield "model.embed_tokens.weight", matrix(VOCABULARY, HIDDEN, HIDDEN**0.5)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", ones
        yield f"{at}.self_attn.q_proj.weight", matrix(HEADS * HEAD, HIDDEN, 1.5)
        yield f"{at}.self_attn.k_proj.weight", matrix(KV_HEADS * HEAD, HIDDEN, 1.5)
        yield f"{at}.self_attn.v_proj.weight", matrix(KV_HEADS * HEAD, HIDDEN, 1.5)
        yield f"{at}.self_attn.o_proj.weight", matrix(HIDDEN, HEADS * HEAD, 1.5)
        yield f"{at}.post_attention_layernorm.weight", ones
        yield f"{at}.mlp.gate_proj.weight", matrix(INNER, HIDDEN, 1.5)
        yield f"{at}.mlp.up_proj.weight", matrix(INNER, HIDDEN, 1.5)
        yield f"{at}.mlp.down_proj.weight", matrix(HIDDEN, INNER, 1.5)
    yield "model.norm.weight", ones
    head = matrix(VOCABULARY, HIDDEN, LOGIT_SCALE)
    mute = np.ones(VOCABULARY, dtype=bool)
    mute[can_win] = False
    head[mute] = 0
    yield "lm_head.weight", head


def write_weights(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write ``tensors`` as two files and the index that says which file holds which."""
    second = tuple(f"model.layers.{layer}." for layer in range(LAYERS // 2, LAYERS))
    files = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    place = {
        name: files[name.startswith((*second, "model.norm", "lm_head"))] for name in sorted(tensors)
    }
    for file in files:
        part = {name: tensors[name] for name in place if place[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size_bytes}, "weight_map": place}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, content: object) -> None:
    """Write ``content`` the way people read it."""
    path.write_text(json.dumps(content, indent=2) + "\n")


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main(folder: Path) -> None:
    """Write every file of the model into ``folder``."""
    text = Path(__file__).with_name("text.txt").read_text()
    words = frozenset(word.strip(".,:;()\"'") for word in text.split())
    tokenizer = train_tokenizer(text)
    tokenizer.save(str(folder / "tokenizer.json"))
    can_win = speakable(tokenizer, frozenset(word for word in words if len(word) > 2))
    write_weights(folder, dict(weights(can_win)))
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": SPECIAL[0],
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{len(can_win)} words can be said")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
