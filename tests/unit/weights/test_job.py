"""A host's job, as the control side writes it and the host reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.job import parse_job
from vllm_cluster.weights.fanout import Host, Model, connections_for, make_jobs

HOSTS = [Host(f"n{i}", f"10.0.0.{i}") for i in range(5)]
MODEL = Model("org/m", "r1", "0" * 64)


def jobs(**options: Any) -> dict[str, str]:
    return make_jobs(MODEL, HOSTS[:2], HOSTS[2:], token="t" * 20, port=7, options=options)


def test_every_host_has_a_job_and_prefers_who_comes_before_it() -> None:
    made = {name: parse_job(text) for name, text in jobs().items()}
    assert sorted(made) == ["n0", "n1", "n2", "n3", "n4"]
    assert [peer.name for peer in made["n3"].upstreams] == ["n2", "n1", "n0", "n4"]
    assert [peer.name for peer in made["n3"].before] == ["n2", "n1", "n0"]
    assert made["n3"].own.address == "10.0.0.3"


def test_the_token_is_not_shown_when_a_job_is() -> None:
    assert "t" * 20 not in repr(parse_job(jobs()["n1"]))


def test_no_holder_is_refused_before_a_host_is_touched() -> None:
    with pytest.raises(ValueError, match="obtain it first"):
        make_jobs(MODEL, [], HOSTS, token="t" * 20, port=7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"me": "elsewhere"}, "elsewhere"),
        ({"token": "short"}, "16"),
        ({"token": "line\r\nX: y" + "a" * 16}, "printable"),
        ({"chain": []}, "every host once"),
        ({"chain": [{"name": "n0", "address": "a.example", "port": 1}]}, "a.example"),
        ({"chain": [{"name": "a b", "address": "10.0.0.1", "port": 1}]}, "not names of hosts"),
        ({"model": "../m"}, "model name"),
        ({"revision": "x/y"}, "revision"),
        ({"limits": {"what": 1}}, "what"),
    ],
)
def test_a_job_with_a_mistake_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    value = json.loads(jobs()["n0"]) | change
    with pytest.raises(WeightsError, match=words):
        parse_job(json.dumps(value))


@pytest.mark.parametrize(
    ("mbit", "connections"), [(None, 2), (200, 1), (10_000, 2), (25_000, 6), (100_000, 25)]
)
def test_connections_follow_the_link(mbit: float | None, connections: int) -> None:
    assert connections_for(mbit) == connections
