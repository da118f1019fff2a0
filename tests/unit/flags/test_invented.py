"""Advice against inventions is no invention itself."""

import re

import pytest

from vllm_cluster.plan.flags import Kind, Tool, table, versions
from vllm_cluster.plan.flags.invented import inventions

EVERY: list[tuple[Tool, str]] = [
    *(("vllm", each) for each in versions("vllm")),
    *(("ray", each) for each in versions("ray")),
]


@pytest.mark.parametrize(("tool", "version"), EVERY)
def test_every_argument_that_is_recommended_exists(tool: Tool, version: str) -> None:
    known = table(tool, version)
    wrong = {
        each.name: missing
        for each in inventions(tool).values()
        if each.name not in known
        and (missing := [name for name in each.recommended if name not in known])
    }
    # `-O0` is --optimization-level in short, which the parser rewrites before it looks names up.
    wrong.pop("-O", None)
    assert wrong == {}


@pytest.mark.parametrize("ray", versions("ray"))
def test_every_option_of_ray_that_is_recommended_exists(ray: str) -> None:
    text = " ".join(each.sentence for each in inventions("vllm").values())
    named = set(re.findall(r"`ray start (--[\w-]+)", text))
    assert named
    assert {name for name in named if name not in table("ray", ray)} == set()


@pytest.mark.parametrize(("tool", "version"), EVERY)
def test_every_invention_is_refused_with_its_own_sentence(tool: Tool, version: str) -> None:
    known = table(tool, version)
    for each in inventions(tool).values():
        if each.name in known or each.name == "-O":
            continue
        [problem] = known.check([each.name, "x"], words=0)
        assert problem.kind is Kind.UNKNOWN
        assert problem.sentence.endswith(each.sentence)


@pytest.mark.parametrize(
    "name",
    [
        "--ray-enabled",
        "--profile-memory",
        "--worker-port-min",
        "--worker-port-max",
        "--task",
        "--worker-use-ray",
        "--engine-use-ray",
        "--use-v2-block-manager",
        "--swap-space",
        "--num-scheduler-steps",
        "--speculative-model",
    ],
)
def test_the_inventions_of_the_guides_are_known(name: str) -> None:
    assert name in inventions("vllm")
    assert all(name not in table("vllm", version) for version in versions("vllm"))
