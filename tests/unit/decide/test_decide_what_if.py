"""Tables of what would fit."""

from __future__ import annotations

import pytest

from tests.unit.decide.test_decide_layout import SERVING, hosts
from tests.unit.memory.models import public
from vllm_cluster.plan.decide import decide
from vllm_cluster.plan.decision import Ask
from vllm_cluster.plan.memory.facts import Layout
from vllm_cluster.plan.whatif import Axes, what_if


def test_there_is_a_row_for_every_combination_in_order() -> None:
    axes = Axes(max_model_len=(4096, 131072), kv_cache_dtype=("auto", "fp8"), hosts=(1, 2))
    model = public("Llama-3.3-70B-Instruct")
    rows = what_if(model, hosts(2, 4, "A100-40GB"), Ask(serving=SERVING), axes)
    assert len(rows) == len(axes) == 8
    assert [(r.max_model_len, r.kv_cache_dtype, r.hosts) for r in rows[:3]] == [
        (4096, "auto", 1),
        (4096, "auto", 2),
        (4096, "fp8", 1),
    ]
    assert [r.fits for r in rows if r.max_model_len == 131072] == [False, True, False, True]
    assert all(r.why_not for r in rows if not r.fits)


def test_a_row_says_what_the_decision_says() -> None:
    model, machines = public("Llama-3.3-70B-Instruct"), hosts(2, 4, "A100-40GB")
    (row,) = what_if(model, machines, Ask(serving=SERVING), Axes())
    alone = decide(model, machines, Ask(serving=SERVING))
    assert alone.fit is not None
    assert (row.fits, row.layout, row.kv_tokens) == (True, alone.layout, alone.fit.kv_tokens)


def test_hosts_and_gpus_that_are_not_there_are_imagined_like_the_first() -> None:
    model = public("DeepSeek-V3")
    axes = Axes(hosts=(1, 2), gpus_per_host=(4, 8))
    rows = what_if(model, hosts(1, 4, "H100"), Ask(serving=SERVING), axes)
    assert [(r.hosts, r.gpus_per_host, r.fits) for r in rows] == [
        (1, 4, False),
        (1, 8, False),
        (2, 4, False),
        (2, 8, True),
    ]
    assert rows[-1].layout == Layout(8, 2)


def test_a_table_that_nobody_would_read_is_refused() -> None:
    with pytest.raises(ValueError, match="shorten an axis"):
        what_if(
            public("Qwen3-0.6B"),
            hosts(1, 1, "L4"),
            Ask(),
            Axes(max_model_len=tuple(range(1, 3000))),
        )
