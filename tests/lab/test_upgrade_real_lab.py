"""Real vLLM over Ray on two hosts: a stop that loses no token, and upgrades that it refuses."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.harness import BIN, ROOT, Cluster, await_true, describe
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600)]
NAME = lab_name("t-upgrade-real")
TOKENS = 200
CURL_NOT_CONNECTED = 7


@dataclass
class Serving:
    cluster: Cluster
    folder: Path

    def describe(self, **changes: dict[str, Any]) -> None:
        """The description with `changes` merged into its sections."""
        whole = yaml.safe_load((self.folder / "original.yaml").read_text())
        for section, values in changes.items():
            whole[section] = {**whole[section], **values}
        self.cluster.description.write_text(yaml.safe_dump(whole, sort_keys=False))

    def run(self) -> subprocess.CompletedProcess[str]:
        return self.cluster.pyinfra("-y", "--fail-percent", "0")

    def args(self, **more: Any) -> dict[str, Any]:
        whole = yaml.safe_load((self.folder / "original.yaml").read_text())
        return {"args": {**whole["serve"]["args"], **more}}

    def started(self) -> str:
        look = "docker container inspect -f '{{.State.StartedAt}} {{.Image}}' vllm"
        return self.cluster.on("node-a", look).strip()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    lab = Lab.up(2, name=NAME)
    try:
        folder = tmp_path_factory.mktemp("upgrade")
        made = describe(
            lab, folder, lambda t: t.replace("shutdown_timeout_s: 5", "shutdown_timeout_s: 60")
        )
        (folder / "original.yaml").write_text(made.description.read_text())
        made.apply()
        yield Serving(made, folder)
    finally:
        lab.down()


@dataclass
class Client:
    """Asks one after the other for as long as it is wanted; notes when answers came."""

    cluster: Cluster
    answered: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Client:
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _ask(self) -> None:
        while not self.ended.is_set():
            answer = self.cluster.complete("Hello", 1)
            if answer is not None and answer.get("token_ids"):
                self.answered.append(time.monotonic())
            self.ended.wait(0.5)

    def longest_silence_s(self) -> float:
        return max(b - a for a, b in zip(self.answered, self.answered[1:], strict=False))


def stream(cluster: Cluster) -> subprocess.Popen[str]:
    """A client that has asked for TOKENS tokens, one event each."""
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True}  # fmt: skip
    key = cluster.secrets["api_key"]
    url = f"http://{cluster.lab.host('node-a').address}:8000/v1/completions"
    argv = cluster.lab.outside_argv([
        "curl", "--silent", "--show-error", "--no-buffer", "--fail", "--max-time", "300",
        "--header", f"Authorization: Bearer {key}", "--header", "Content-Type: application/json",
        "--data", json.dumps(body), url,
    ])  # fmt: skip
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def tokens_of(text: str) -> list[int]:
    found: list[int] = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                found += choice.get("token_ids") or []
    return found


def test_a_client_that_streams_during_a_stop_gets_all_its_tokens(serving: Serving) -> None:
    cluster = serving.cluster
    expected = tokens_of(stream(cluster).communicate(timeout=300)[0])
    assert len(expected) == TOKENS
    client = stream(cluster)
    assert client.stdout is not None
    first = client.stdout.readline()
    assert first.startswith("data: {")
    stop = subprocess.Popen(
        [BIN / "vllm-cluster", "stop", str(cluster.description)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    key = cluster.secrets["api_key"]
    url = f"http://{cluster.lab.host('node-a').address}:8000/v1/models"
    asks = ["curl", "--silent", "--show-error", "--max-time", "5",
            "--header", f"Authorization: Bearer {key}", url]  # fmt: skip

    def refused() -> bool:
        return cluster.lab.outside(*asks).returncode == CURL_NOT_CONNECTED

    await_true("new requests are refused", refused, 60)
    still_streaming = client.poll() is None
    rest, errors = client.communicate(timeout=300)
    said = stop.communicate(timeout=600)[0]
    assert stop.returncode == 0, said
    assert client.returncode == 0, errors
    assert tokens_of(first + rest) == expected
    assert (first + rest).rstrip().endswith("data: [DONE]")
    assert still_streaming, "the stop came after the last token: nothing was proven"
    done = command(cluster, "start")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.complete("Hello", 4) is not None


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """`vllm-cluster` with `words` and the description."""
    return subprocess.run([BIN / "vllm-cluster", *words, str(cluster.description)],
                          cwd=ROOT, check=False, capture_output=True, text=True)  # fmt: skip


def ending_s(cluster: Cluster, since: str) -> float:
    """Seconds from vLLM's being told to stop to systemd's "Stopped": of a start no "Stopping" is
    logged."""
    told = cluster.on("node-a", f"journalctl -b -u vllm --since=@{since} -o short-unix")
    begun, ended = (
        max(float(line.split()[0]) for line in told.splitlines() if words in line)
        for words in (": stopped while vLLM started", "]: Stopped ")
    )
    return ended - begun


def test_a_stop_while_vllm_starts_waits_for_nobody(serving: Serving) -> None:
    """vLLM over Ray does not hear SIGTERM until it serves; nothing is lost by ending it."""
    cluster = serving.cluster
    begun = cluster.on("node-a", "date +%s").strip()
    cluster.on("node-a", "systemctl restart --no-block vllm")
    count = f"journalctl -b -u vllm --since=@{begun} | grep -c '{{}}'"
    look = count.format("Initializing a V1 LLM engine")
    await_true("its engine starts", lambda: cluster.on("node-a", look, check=False) == "1\n", 180)
    done = command(cluster, "stop")
    assert done.returncode == 0, done.stdout + done.stderr
    served = cluster.on("node-a", count.format("]: Started "), check=False)
    assert served == "0\n", "it served before the stop came: nothing is proven"
    assert ending_s(cluster, begun) < 30  # within the declared time, of which nothing has need
    assert cluster.on("node-a", "docker ps --quiet").strip() == ""
    assert cluster.on("node-a", "systemctl is-failed vllm", check=False).strip() == "inactive"
    told = json.loads(command(cluster, "status", "--json").stdout)
    unit = told["hosts"]["node-a"]["units"]["vllm.service"]
    assert unit["last_end"] == "stopped on request"
    done = command(cluster, "start")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.complete("Hello", 4) is not None


def without_ray(archive: Path, out: Path) -> Path:
    """The image of `archive` and a layer that takes Ray away."""
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
    packages = next((ROOT / ".cache/image/current/rootfs/opt/vllm/lib").glob("python3.*"))
    site = f"opt/vllm/lib/{packages.name}/site-packages"
    gone = [path.name for path in (packages / "site-packages").glob("ray*")
            if path.name == "ray" or path.name.startswith("ray-")]  # fmt: skip
    assert "ray" in gone
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in gone:
            layer.addfile(tarfile.TarInfo(f"{site}/.wh.{name}"))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
    config.setdefault("history", []).append({"created_by": "without Ray"})
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    layers = [*manifest[0]["Layers"], f"{digest}/layer.tar"]
    tag = "vllm-cluster/no-ray:1"
    whole = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": layers}]).encode()
    contents = {layers[-1]: buffer.getvalue(), name: text, "manifest.json": whole}
    with tarfile.open(archive) as old, tarfile.open(out, "w") as new:
        for member in old:
            if member.name != "manifest.json":
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
        for path, content in contents.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out


def test_an_image_without_ray_is_refused_while_the_old_one_serves(
    serving: Serving, tmp_path: Path
) -> None:
    before = serving.started()
    archive = without_ray(ROOT / ".cache/image/current/image.tar", tmp_path / "no-ray.tar")
    serving.describe(image={"archive": str(archive)})
    done = serving.run()
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Ray in the image" in said, said
    assert serving.started() == before
    assert serving.cluster.complete("Hello", 4) is not None


def test_an_argument_that_vllm_refuses_is_refused_while_the_old_one_serves(
    serving: Serving,
) -> None:
    before = serving.started()
    overrides = {"architectures": ["NoSuchForCausalLM"]}
    serving.describe(serve=serving.args(**{"hf-overrides": overrides}))
    done = serving.run()
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "refused: vLLM refuses: " in said, said
    assert "NoSuchForCausalLM" in said, said
    assert serving.started() == before
    assert serving.cluster.complete("Hello", 4) is not None


def test_an_upgrade_interrupts_no_longer_than_vllm_takes_to_start(serving: Serving) -> None:
    serving.describe(serve=serving.args(**{"max-num-seqs": 8}))
    with Client(serving.cluster) as client:
        await_true("it answers", lambda: bool(client.answered), 60)
        done = serving.run()
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        count = len(client.answered)
        await_true("it answers again", lambda: len(client.answered) > count, 60)
    silence_s = client.longest_silence_s()
    show = "systemctl show --timestamp=us+utc -P {} vllm"
    begun, active = (
        int(serving.cluster.on("node-a", f'date -d "$({show.format(name)})" +%s'))
        for name in ("ExecMainStartTimestamp", "ActiveEnterTimestamp")
    )
    own_s = active - begun
    print(f"no answer for {silence_s:.0f} s, of which vLLM's own start took {own_s} s")
    assert silence_s < own_s + 60
    assert "tokens/s before" in said


def test_a_rollback_brings_the_old_one_back_and_leaves_the_new_one(serving: Serving) -> None:
    """What the test before this one brought is left again; the description still has it."""
    arguments = "docker container inspect -f '{{.Args}}' vllm"
    assert "max-num-seqs=8" in serving.cluster.on("node-a", arguments)
    done = command(serving.cluster, "rollback")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "max-num-seqs=8" not in serving.cluster.on("node-a", arguments)
    assert serving.cluster.complete("Hello", 4) is not None
    before = serving.started()
    done = serving.run()
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "which was left: rolled back by" in said
    assert serving.started() == before
    serving.describe()
    done = serving.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert serving.started() == before


def test_an_engine_that_fails_is_taken_back_by_itself(serving: Serving) -> None:
    """Taken by the parser and by the making of the configuration; the engine then has no room."""
    before = serving.started().split()[1]
    serving.describe(serve=serving.args(**{"kv-cache-memory-bytes": 1 << 50}))
    done = serving.run()
    said = done.stdout + done.stderr
    print(said[-3000:])
    assert done.returncode == 1, said
    assert "The old one serves again, after" in said, said
    assert serving.cluster.complete("Hello", 4) is not None
    assert serving.started().split()[1] == before
    shown = command(serving.cluster, "status").stdout
    assert re.search(r"failed .*because vLLM did not start on node-a: .*Available memory", shown)
    assert re.search(r"failed: generation \d+: .*Available memory.*serves again, after", said)
