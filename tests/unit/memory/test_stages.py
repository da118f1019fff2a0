"""Layers over pipeline stages, as vLLM deals them out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.plan.memory.facts import Layout, LayoutError
from vllm_cluster.plan.memory.stages import split_layers, stage_layers


@pytest.mark.parametrize(
    ("layers", "stages", "parts"),
    [
        (80, 2, (40, 40)),
        (61, 2, (31, 30)),  # the last stage has the head, so the first takes the odd layer
        (10, 4, (2, 3, 3, 2)),  # two left over: the middle, not the ends
        (11, 4, (3, 3, 3, 2)),
        (9, 4, (2, 2, 3, 2)),
        (5, 5, (1, 1, 1, 1, 1)),
    ],
)
def test_left_over_layers_go_to_the_stages_before_the_last(
    layers: int, stages: int, parts: tuple[int, ...]
) -> None:
    assert split_layers(layers, stages) == parts


@given(st.integers(1, 200), st.integers(1, 32))
def test_every_layer_is_on_one_stage_and_stages_differ_by_one(layers: int, stages: int) -> None:
    parts = split_layers(layers, stages)
    assert sum(parts) == layers
    assert max(parts) - min(parts) <= 1
    assert len(parts) == stages
    assert parts[-1] == min(parts)


def test_a_partition_of_ones_own_is_taken_as_it_is() -> None:
    assert stage_layers(10, Layout(1, 3, partition=(5, 3, 2))) == ((0, 5), (5, 8), (8, 10))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(1, 3, partition=(5, 5)), "names 2 stages, pipeline is 3"),
        (Layout(1, 2, partition=(5, 6)), "adds up to 11 layers, the model has 10"),
        (Layout(1, 2, partition=(10, 0)), "leave a stage empty"),
        (Layout(1, 11), "use at most 10"),
    ],
)
def test_a_partition_that_cannot_be_is_refused_with_its_numbers(layout: Layout, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        stage_layers(10, layout)
