"""Which process runs on which GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_cluster.plan.model import Rank


def rank_map(tensor: int, gpus: Mapping[str, int], *, spans: bool = False) -> tuple[Rank, ...]:
    """Ranks over `gpus` (host -> number of GPUs, the head first).

    rank = pp_rank x TP + tp_rank (vllm/distributed/parallel_state.py, initialize_model_parallel):
    tensor ranks are neighbours, so that a stage fills one host before the next begins, and
    only the activations between stages cross the network.
    Raises ValueError when a stage would be split between hosts, unless `spans` allows it.
    """
    for host, count in gpus.items():
        if count % tensor and not spans:
            raise ValueError(f"{host}: {count} GPUs do not hold whole stages of TP={tensor}")
    return tuple(_ranks(tensor, gpus))


def _ranks(tensor: int, gpus: Mapping[str, int]) -> Iterator[Rank]:
    rank = 0
    for host, count in gpus.items():
        for gpu in range(count):
            yield Rank(rank, rank % tensor, rank // tensor, host, gpu)
            rank += 1
