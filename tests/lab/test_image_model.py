"""The tiny model: the same bytes on every run, and answers that no arithmetic noise can turn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from images import chroot
from images.cpu import recipe
from images.model import make
from images.reference.ask import MAX_TOKENS, PROMPT, REFERENCE, ask

PROBE = Path(__file__).parent / "image_probe"
PROMPTS = (PROMPT, "When a host loses power", "Write one line about the sea.")


def header(shard: Path) -> dict[str, Any]:
    """The tensors of a safetensors file: the format's own JSON header, read by hand."""
    with shard.open("rb") as file:
        size_bytes = int.from_bytes(file.read(8), "little")
        tensors: dict[str, Any] = json.loads(file.read(size_bytes))
    tensors.pop("__metadata__")
    return tensors


def by_transformers(prompt: str) -> Any:
    request = json.dumps({"prompt": prompt, "max_tokens": MAX_TOKENS})
    command = chroot.command(
        (recipe.IMAGE_CACHE / "current/rootfs").resolve(),
        ["python", "/mnt/greedy.py", "/srv", request],
        env={"PATH": recipe.PATH, "HOME": "/root", "HF_HUB_OFFLINE": "1"},
        binds={PROBE: "/mnt", make.MODEL: "/srv"},
        own_network=True,
    )
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_made_of_the_same_bytes_each_time(tmp_path: Path) -> None:
    known = json.loads(make.DESCRIPTION.read_text())["files"]
    make.generate(tmp_path / "again")
    sums = subprocess.run(
        ["sha256sum", *sorted(path.name for path in (tmp_path / "again").iterdir())],
        cwd=tmp_path / "again", check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert {line.split()[1]: line.split()[0] for line in sums.splitlines()} == known


def test_its_two_files_hold_each_tensor_once_as_the_index_says() -> None:
    index = json.loads((make.MODEL / "model.safetensors.index.json").read_text())
    shards = sorted(make.MODEL.glob("*.safetensors"))
    assert len(shards) == 2
    found = {name: shard.name for shard in shards for name in header(shard)}
    assert found == index["weight_map"]
    assert sum(len(header(shard)) for shard in shards) == len(found)
    sizes = [t["data_offsets"] for shard in shards for t in header(shard).values()]
    assert sum(end - start for start, end in sizes) == index["metadata"]["total_size"]


def test_it_splits_into_two_tensor_ranks_and_into_two_or_four_stages() -> None:
    config = json.loads((make.MODEL / "config.json").read_text())
    assert config["num_hidden_layers"] == 4
    split = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    assert [config[key] % 2 for key in split] == [0, 0, 0, 0]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_no_rounding_turns_its_answer_and_every_layer_does(prompt: str) -> None:
    found = by_transformers(prompt)
    assert found["least_lead"] > 0.1
    assert len(set(found["token_ids"])) > MAX_TOKENS // 3
    assert len(found["without_layer"]) == 4
    for without in found["without_layer"].values():
        assert without != found["token_ids"]


def test_one_vllm_process_answers_as_transformers_does() -> None:
    kept = json.loads(REFERENCE.read_text())
    assert kept["prompt"] == PROMPT
    assert kept["token_ids"] == by_transformers(PROMPT)["token_ids"]
    other = PROMPTS[1]
    answer = ask({"prompt": other, "max_tokens": MAX_TOKENS})
    assert answer["token_ids"] == by_transformers(other)["token_ids"]
    assert answer["text"].split()
