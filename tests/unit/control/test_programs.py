"""What a run needs of this machine is missed before any host is contacted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vllm_cluster import inventory
from vllm_cluster.control.context import Context
from vllm_cluster.control.programs import refuse_missing
from vllm_cluster.plan import make_plan
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import load


@pytest.fixture(autouse=True)
def no_rsync(monkeypatch: pytest.MonkeyPatch) -> None:
    def which(_: str) -> str | None:
        return None

    monkeypatch.setattr(shutil, "which", which)


INVENTORIES = Path(__file__).parents[3] / "inventories"


def described(folder: Path, sources: str, *, there: bool = True) -> Context:
    file = folder / "lab.yaml"
    lines = (INVENTORIES / "lab.yaml").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  source: "))
    lines[at] = f"  {sources}"
    file.write_text("\n".join(lines))
    cluster = load(file)
    plan = make_plan(cluster.description, image_id="sha256:1", model_id=ModelId("local", "", 2))
    return Context(cluster, plan, None, folder / "model" if there else None, None, {})


def test_a_model_here_without_rsync_is_refused_before_any_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = described(tmp_path, "source: model")
    monkeypatch.setattr(inventory, "context", lambda _: known)
    with pytest.raises(SystemExit) as ended:
        inventory.groups(known.cluster.file)
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"model.source: found {tmp_path}/model, and this machine has no rsync" in said
    assert "apt-get install rsync" in said


def test_a_model_from_elsewhere_needs_no_rsync(tmp_path: Path) -> None:
    refuse_missing(described(tmp_path, "source: model", there=False))
    refuse_missing(
        described(
            tmp_path, "revision: v1\n  sources: [{host: node-a, directory: /m}, {here: model}]"
        )
    )
