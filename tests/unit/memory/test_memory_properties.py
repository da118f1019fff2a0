"""For any model, machines and question: an answer, and one that does not contradict itself."""

from __future__ import annotations

import json
import os
from xml.etree import ElementTree as Xml

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.memory.strategies import machines, models, questions
from vllm_cluster.plan.decide import decide
from vllm_cluster.plan.decision import Ask, Decision, tensor_group_spans_hosts
from vllm_cluster.plan.memory.facts import GpuFacts, HostFacts, Layout, ModelFacts, Serving
from vllm_cluster.plan.memory.fit import fit
from vllm_cluster.plan.memory.placement import EVERY_STAGE_TYPES
from vllm_cluster.plan.memory.search import try_fit
from vllm_cluster.plan.picture import Style, rank_map, render_svg, render_text

#: MEMORY_EXAMPLES=2000 looks harder than the everyday run.
SLOW = settings(
    max_examples=int(os.environ.get("MEMORY_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check_memory(answer: Decision) -> None:
    """No rank holds more than vLLM may use, nor all together more than its GPU has."""
    assert answer.fit is not None
    found = answer.fit
    for rank in found.ranks:
        used = rank.weights.total_bytes + rank.allowance.inside_bytes + rank.kv_used_bytes
        assert used <= rank.requested_bytes
        assert rank.requested_bytes + rank.allowance.outside_bytes <= rank.gpu.memory_bytes
        assert rank.free_bytes >= 0
        assert rank.kv_blocks >= found.kv_blocks
    if found.blocks_per_request:
        assert found.kv_blocks > found.blocks_per_request
        assert found.concurrency >= (found.serving.full_requests or 1.0)


def check_places(answer: Decision, hosts: list[HostFacts]) -> None:
    """Every rank has a GPU that exists, no GPU has two, replicas do not mix."""
    assert answer.layout is not None
    layout, places = answer.layout, answer.places
    assert len(places) == layout.gpus
    assert len({(p.host, p.gpu) for p in places}) == layout.gpus
    by_name = {host.name: host for host in hosts}
    assert all(0 <= p.gpu < by_name[p.host].gpus for p in places)
    for replica in range(layout.data):
        ranks = [p.rank for p in places if p.replica == replica]
        assert ranks == list(range(layout.gpus_per_replica))


@SLOW
@given(models(), machines(), questions())
def test_an_answer_never_contradicts_itself(
    model: ModelFacts, hosts: list[HostFacts], ask: Ask
) -> None:
    answer = decide(model, hosts, ask)
    json.dumps(answer.to_json())
    if answer.verdict == "refused":
        assert answer.refusals
        assert all(refusal.reason and refusal.fix for refusal in answer.refusals)
        return
    assert not answer.refusals
    check_memory(answer)
    check_places(answer, hosts)
    assert answer.layout is not None
    if ask.layout is not None:
        assert answer.layout == ask.layout
    spans = tensor_group_spans_hosts(answer.layout, answer.places)
    assert not spans or ask.force_tensor_across_hosts
    assert ask.layout is not None or not spans


@SLOW
@given(models(), machines(), questions(), st.integers(80, 120), st.booleans())
def test_every_layout_can_be_drawn(
    model: ModelFacts, hosts: list[HostFacts], ask: Ask, width: int, unicode: bool
) -> None:
    answer = decide(model, hosts, ask)
    if answer.fit is None or not answer.places:
        return
    picture = rank_map(answer, hosts)
    text = render_text(picture, Style(unicode=unicode, width=width))
    boxes = [line for line in text.splitlines() if line.startswith(tuple("╭│╰+|"))]
    assert {len(line) for line in boxes} <= {width}
    assert unicode or text.isascii()
    Xml.fromstring(render_svg(picture))  # noqa: S314 - our own


@SLOW
@given(models(), machines(), questions())
def test_several_hosts_are_never_chosen_where_one_does(
    model: ModelFacts, hosts: list[HostFacts], ask: Ask
) -> None:
    question = Ask(serving=ask.serving)
    answer = decide(model, hosts, question)
    if answer.verdict == "fits" and answer.shape == "several hosts":
        assert decide(model, hosts[:1], question).verdict == "refused"


@SLOW
@given(models(), st.integers(1, 8), st.integers(1, 4), st.integers(10, 200), st.integers(1, 100))
def test_more_memory_never_holds_less(
    model: ModelFacts, tensor: int, pipeline: int, gib: int, more: int
) -> None:
    layout, serving = (
        Layout(tensor, pipeline),
        Serving(max_num_batched_tokens=2048, max_num_seqs=64),
    )
    small, large = (
        try_fit(model, layout, serving, [GpuFacts("G", size * 1024**3)] * layout.gpus)
        for size in (gib, gib + more)
    )
    assert (small is None) == (large is None)
    if small is not None and large is not None:
        assert large.kv_blocks >= small.kv_blocks
        assert large.fits or not small.fits


@SLOW
@given(models(), st.integers(1, 6))
def test_stages_hold_every_tensor_that_one_gpu_holds(model: ModelFacts, stages: int) -> None:
    serving = Serving(max_num_batched_tokens=2048)
    alone = fit(model, Layout(), serving, [GpuFacts("G", 10**12)])
    split = try_fit(model, Layout(1, stages), serving, [GpuFacts("G", 10**12)] * stages)
    if split is None:
        assert stages > model.layers
        return
    whole = alone.ranks[0].weights
    parts = [rank.weights for rank in split.ranks]
    layers = sum(p.total_bytes - p.embedding_bytes - p.head_bytes for p in parts)
    if model.model_type in EVERY_STAGE_TYPES:
        layers -= (stages - 1) * model.hidden * 2  # the last norm, on every stage
    assert layers == whole.total_bytes - whole.embedding_bytes - whole.head_bytes
    assert parts[0].embedding_bytes == whole.embedding_bytes
    assert parts[-1].head_bytes == whole.head_bytes
    assert sum(p.past_layer - p.first_layer for p in parts) == model.layers
