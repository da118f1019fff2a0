"""Where the model lies, what a unit checks it with, and what loading it over NFS takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.plan import Plan, make_plan, paths
from vllm_cluster.plan.weights import ModelId, load_seconds, readers_of
from vllm_cluster.spec import loads

PROD = (Path(__file__).parents[3] / "inventories" / "prod.yaml").read_text()
KNOWN = ModelId("v1", "a" * 64, 5)


def plan(text: str = PROD, known: ModelId | None = KNOWN) -> Plan:
    return make_plan(loads(text, Path("prod.yaml")).description, model_id=known)


def test_vllm_is_given_the_revision_which_the_container_sees() -> None:
    made = plan()
    path = "/var/lib/vllm-cluster/models/llama-3.3-70b-instruct/v1"
    assert made.model_path == path
    run = made.hosts["node-a"].containers["vllm"].run()
    assert path in run
    # The link leads into ROOT/.store, so the container must have all of ROOT.
    root = "/var/lib/vllm-cluster/models"
    assert f"--mount=type=bind,source={root},target={root},readonly" in run


def test_an_organisation_is_part_of_the_directorys_name() -> None:
    made = plan(PROD.replace("directory: llama-3.3-70b-instruct", "directory: meta/llama"))
    assert made.model_path.endswith("/meta--llama/v1")
    assert made.weights.model == "meta/llama"


def test_a_unit_checks_model_revision_and_identity_and_notes_that_it_uses_them() -> None:
    words = plan().weights.check("vllm.service")
    assert words[:2] == ("/usr/bin/python3", paths.AGENT)
    text = " ".join(words)
    assert "check --model llama-3.3-70b-instruct --revision v1 --identity " + "a" * 64 in text
    assert text.endswith("--pin vllm.service")


def test_on_a_share_nothing_is_written_beside_the_model() -> None:
    made = plan(PROD.replace("storage: nvme", "storage: shared"))
    assert made.model_path == "/var/lib/vllm-cluster/models/llama-3.3-70b-instruct"
    words = made.weights.check("vllm.service")
    assert "--pin" not in words
    assert words[words.index("--notes") + 1] == paths.WEIGHTS_NOTES
    assert made.weights.manifest.startswith(paths.WEIGHTS_NOTES)
    assert not any("weights" in use.name for use in made.ports)


def test_ports_of_the_fan_out_are_open_between_the_hosts_alone() -> None:
    [use] = [use for use in plan().ports if use.name.startswith("weights")]
    assert (use.bind, use.allowed, use.where) == ("fabric", "cluster", "every host")
    assert use.last > use.first, "two models at once need two"


def test_loading_over_nfs_takes_the_model_once_or_once_a_host() -> None:
    least, most = load_seconds(140 * 10**9, 4, 25)
    assert least == pytest.approx(140 * 8 / 25 / 0.949)
    assert most == pytest.approx(4 * least)


def test_the_first_reader_of_a_share_is_its_server() -> None:
    share = "storage: {nfs: {/mnt/m: {server: node-b, export: /m}}}\n"
    description = loads(PROD + share, Path("prod.yaml")).description
    assert readers_of(description, "/mnt/m/x") == ["node-b", "node-a"]
    assert readers_of(description, "/mnt/other") == []
