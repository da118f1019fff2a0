"""The tables say of each release what its own source says."""

import pytest

from vllm_cluster.plan import flags
from vllm_cluster.plan.flags import Tool

EVERY = [("vllm", each) for each in flags.versions("vllm")] + [
    ("ray", each) for each in flags.versions("ray")
]


def test_the_promised_releases_have_tables_in_order() -> None:
    assert flags.versions("vllm")[:4] == ("0.26.0", "0.27.1", "0.32.0", "0.33.0")
    assert flags.versions("ray")[:4] == ("2.48.0", "2.54.0", "2.56.1", "2.60.0")


@pytest.mark.parametrize(("tool", "version"), EVERY)
def test_no_two_arguments_share_a_spelling(tool: Tool, version: str) -> None:
    spellings = [
        name for flag in flags.table(tool, version).flags for name in (*flag.names, *flag.off)
    ]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("version", flags.versions("vllm"))
def test_what_a_cluster_needs_is_in_every_vllm(version: str) -> None:
    table = flags.table("vllm", version)
    assert table.flag("-tp") is table.flag("--tensor-parallel-size")
    assert table.flag("-n").dest == "nnodes"
    assert table.flag("--data-parallel-rpc-port").type == "int"
    assert table.flag("--gpu-memory-utilization").default == 0.92
    assert table.flag("--no-enable-log-requests").name == "--enable-log-requests"
    # Resolved later as an import path, so any word is taken (vllm/engine/arg_utils.py).
    assert table.flag("--distributed-executor-backend").choices == ()
    assert table.flag("--max-model-len").type == "human_int_or_auto"
    assert set(table.flag("--runner").choices) == {"auto", "draft", "generate", "pooling"}


def test_releases_differ_where_their_sources_differ() -> None:
    having = {
        name: [each for each in flags.versions("vllm") if name in flags.table("vllm", each)]
        for name in (
            "--disable-log-requests",
            "--device-memory-utilization",
            "--max-num-partial-prefills",
            "--calculate-kv-scales",
            "--fault-tolerance-config",
            "--task",
        )
    }
    assert having == {
        "--disable-log-requests": ["0.33.0"],
        "--device-memory-utilization": ["0.32.0", "0.33.0"],
        "--max-num-partial-prefills": ["0.26.0"],
        "--calculate-kv-scales": ["0.26.0", "0.27.1"],
        "--fault-tolerance-config": ["0.27.1", "0.32.0", "0.33.0"],
        "--task": [],
    }


@pytest.mark.parametrize("version", flags.versions("ray"))
def test_what_a_cluster_needs_is_in_every_ray(version: str) -> None:
    table = flags.table("ray", version)
    assert table.flag("--min-worker-port").default == 10002
    assert table.flag("--max-worker-port").default == 19999
    assert table.flag("--node-manager-port").default == 0
    assert table.flag("--dashboard-agent-listen-port").default == 52365
    assert table.flag("--include-dashboard").type == "bool"
    assert table.flag("--block").takes == "none"
    assert table.flag("--labels").hidden


def test_a_release_without_a_table_is_refused_with_the_way_to_add_it() -> None:
    with pytest.raises(flags.UnknownVersionError) as caught:
        flags.table("vllm", "0.30.0")
    text = str(caught.value)
    assert "make flags VLLM=0.30.0" in text
    assert all(version in text for version in flags.versions("vllm"))


def test_a_path_is_no_version() -> None:
    with pytest.raises(flags.UnknownVersionError):
        flags.table("vllm", "../data/vllm-0.33.0")


def test_deprecations_are_told_in_the_release_s_own_words() -> None:
    notes = flags.table("vllm", "0.33.0").deprecated(["m", "--ir-op-priority.x", "1"])
    assert notes == {}  # an unknown key gives nothing
    notes = flags.table("vllm", "0.33.0").deprecated(["m", "--log-config-file", "x.json"])
    assert "deprecated" in notes["--log-config-file"]
