"""rank = pp_rank x TP + tp_rank, tensor ranks inside a host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.plan.ranks import rank_map


def test_two_hosts_of_four_gpus_hold_a_stage_each() -> None:
    ranks = rank_map(4, {"node-a": 4, "node-b": 4})
    assert [(r.rank, r.pp_rank, r.tp_rank, r.host, r.gpu) for r in ranks] == [
        (0, 0, 0, "node-a", 0), (1, 0, 1, "node-a", 1),
        (2, 0, 2, "node-a", 2), (3, 0, 3, "node-a", 3),
        (4, 1, 0, "node-b", 0), (5, 1, 1, "node-b", 1),
        (6, 1, 2, "node-b", 2), (7, 1, 3, "node-b", 3),
    ]  # fmt: skip


def test_one_host_may_hold_two_stages() -> None:
    ranks = rank_map(2, {"node-a": 4})
    assert [(r.pp_rank, r.tp_rank) for r in ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_stage_is_never_split_between_hosts() -> None:
    with pytest.raises(ValueError, match="node-b: 3 GPUs do not hold whole stages of TP=2"):
        rank_map(2, {"node-a": 2, "node-b": 3})


@given(
    tensor=st.integers(1, 8),
    stages=st.lists(st.integers(1, 4), min_size=1, max_size=8),
)
def test_a_stage_lies_in_one_host_and_ranks_count_up(tensor: int, stages: list[int]) -> None:
    ranks = rank_map(tensor, {f"n{i}": tensor * count for i, count in enumerate(stages)})
    assert [r.rank for r in ranks] == list(range(tensor * sum(stages)))
    assert all(r.rank == r.pp_rank * tensor + r.tp_rank for r in ranks)
    hosts_of = {
        stage: {r.host for r in ranks if r.pp_rank == stage} for stage in range(sum(stages))
    }
    assert all(len(hosts) == 1 for hosts in hosts_of.values())
    assert len({(r.host, r.gpu) for r in ranks}) == len(ranks)
