"""Facts of a model from a directory and from a hub, without weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab.memory_proof.tiny import CONFIGS, write_model
from tests.unit.memory.models import FIXTURES, PUBLIC, public
from vllm_cluster.model.hub import read_hub_model
from vllm_cluster.model.local import read_model
from vllm_cluster.model.safetensors import ModelReadError, collect, layer_of, read_header
from vllm_cluster.plan.memory.assume import assumptions
from vllm_cluster.plan.memory.facts import Tensor, UnsupportedModelError


@pytest.mark.parametrize("kind", CONFIGS)
def test_headers_give_what_the_config_gives(kind: str, tmp_path: Path) -> None:
    write_model(tmp_path, kind)
    from_headers = read_model(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    (tmp_path / "model.safetensors").unlink()
    from_config = read_model(tmp_path)
    assert (from_headers.tensors_from, from_config.tensors_from) == ("headers", "config")
    assert from_headers.stored_bytes == from_config.stored_bytes
    assert set(from_headers.tensors) == set(from_config.tensors)
    assert 0 < size - from_headers.stored_bytes < 100_000  # the header


def test_a_model_is_written_alike_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, "mqa")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_the_experts_of_a_layer_are_one_entry(tmp_path: Path) -> None:
    write_model(tmp_path, "moe")
    model = read_model(tmp_path)
    gates = [t for t in model.tensors if t.name.endswith("mlp.experts.*.gate_proj.weight")]
    assert [(t.layer, t.count) for t in gates] == [(layer, 8) for layer in range(4)]


def test_a_file_cut_short_is_told(tmp_path: Path) -> None:
    write_model(tmp_path, "mqa")
    file = tmp_path / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    with pytest.raises(ModelReadError, match="is cut short"):
        read_model(tmp_path)
    file.write_bytes(raw[:100])
    with pytest.raises(ModelReadError, match="ends inside its header"):
        read_model(tmp_path)
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(ModelReadError, match="not a safetensors file"):
        read_header(file)


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, "mqa")
    index = {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelReadError, match=r"lacks 1 of 2 files: model-2\.safetensors"):
        read_model(tmp_path)


def test_an_index_whose_size_does_not_agree_is_not_believed(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "Llama-3.1-8B-Instruct" / "config.json", tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for size, agrees in ((16060522496, True), (17000000000, False)):
        index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": {"a": "b"}}))
        if agrees:
            assert read_model(tmp_path).published_bytes == size
        else:
            with pytest.raises(ModelReadError, match="16060522496 bytes, its index says 17000000"):
                read_model(tmp_path)


def test_a_directory_without_a_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError, match=r"config\.json does not exist"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "deepseek_v32"}, "caches more than keys"),
        ({"model_type": "llama"}, "has no num_hidden_layers"),
        ({**CONFIGS["gqa"], "layer_types": ["linear_attention"] * 5}, "linear_attention keep"),
        ({**CONFIGS["gqa"], "num_kv_shared_layers": 2}, "sets num_kv_shared_layers"),
        ({**CONFIGS["gqa"], "num_key_value_heads": [1, 2]}, "differs from layer to layer"),
        ({**CONFIGS["gqa"], "is_encoder_decoder": True}, "sets is_encoder_decoder"),
        ({**CONFIGS["gqa"], "model_type": "unheard_of"}, "tensors of model type 'unheard_of'"),
        ({**CONFIGS["gqa"], "quantization_config": {"quant_method": "hqq"}}, "known: awq, gptq"),
    ],
)
def test_a_model_that_is_not_known_is_said_to_be(
    config: dict[str, object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=words):
        read_model(tmp_path)


def test_layers_of_image_encoders_are_not_decoder_layers() -> None:
    assert layer_of("model.layers.12.mlp.up_proj.weight") == 12
    assert layer_of("vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight") is None
    assert layer_of("audio_tower.layers.3.fc1.weight") is None
    assert layer_of("mtp.layers.0.mlp.up_proj.weight") is None
    assert layer_of("encoder.layer.3.output.dense.bias") == 3
    with pytest.raises(ModelReadError, match="Q9"):
        collect([("x", "Q9", (1,))])


def test_without_a_dtype_in_the_config_the_headers_say_it(tmp_path: Path) -> None:
    write_model(tmp_path, "awq")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["torch_dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path).dtype == "F16"


class _Hub(SimpleHTTPRequestHandler):
    """As much of a hub as reading headers needs: the API's file list and ranges of files."""

    asked: list[tuple[str, str | None]]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self, *, body: bool) -> None:
        folder = Path(self.directory)
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            files = [{"rfilename": p.name} for p in folder.iterdir()]
            described = {"id": "org/tiny", "modelId": "org/tiny", "sha": "1" * 40}
            self._send(json.dumps({**described, "siblings": files}).encode(), body=body)
            return
        file = folder / path.rpartition("/")[2]
        if not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.asked.append((file.name, self.headers.get("Range")))
        self._send(file.read_bytes(), body=body)

    def _send(self, raw: bytes, *, body: bool) -> None:
        wanted = self.headers.get("Range")
        part = raw
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = raw[int(first) : int(last) + 1]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", "1" * 40)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(raw)}")
        self.end_headers()
        if body:
            self.wfile.write(part)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[tuple[str, str | None]], Path]]:
    folder = tmp_path / "repo"
    write_model(folder, "gqa")
    _Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hub, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", _Hub.asked, folder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_ASK_HUB = """
import sys
from vllm_cluster.model.hub import read_hub_model
model = read_hub_model("org/tiny", token=False)
print(model.name, model.tensors_from, model.stored_bytes, model.layers)
"""


def test_the_hub_is_asked_for_headers_and_not_for_weights(
    hub: tuple[str, list[tuple[str, str | None]], Path], tmp_path: Path
) -> None:
    url, asked, folder = hub
    env = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", _ASK_HUB], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = read_model(folder)
    assert done.stdout.split() == [
        "org/tiny",
        "headers",
        str(expected.stored_bytes),
        str(expected.layers),
    ]
    weights = [wanted for name, wanted in asked if name == "model.safetensors"]
    assert weights
    for wanted in weights:
        if wanted is None:
            continue
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        assert int(last) - int(first) <= 100_000


def test_a_hub_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to import

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelReadError, match=r"org/nothing: http://127.0.0.1:9 cannot be reached"):
        read_hub_model("org/nothing", api=HfApi(endpoint="http://127.0.0.1:9", token=False))


def test_a_type_that_was_not_read_and_tensors_that_are_not_known_are_said(tmp_path: Path) -> None:
    write_model(tmp_path, "gqa")
    config = {**CONFIGS["gqa"], "model_type": "cousin"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_model(tmp_path)
    (unread,) = assumptions(facts)
    assert "model type 'cousin' is not among those whose code was read" in unread
    odd = Tensor("model.layers.0.side_road.weight", (256, 256), "BF16", 1, 0)
    _, unknown = assumptions(replace(facts, tensors=(*facts.tensors, odd)))
    assert unknown.startswith("1 tensors of 0.1 MiB (model.layers.0.side_road.weight")
    assert all(not assumptions(public(name)) for name in PUBLIC)
