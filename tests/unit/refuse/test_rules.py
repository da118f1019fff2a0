"""Every rule refuses what it is for, and lets the closest right thing pass."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.refusal_cases import CASES, MODELS, Case
from vllm_cluster.plan import flags
from vllm_cluster.plan.refuse import RULES, Refusal, ServeRequest, refusals

BY_RULE = {case.rule: case for case in CASES}


def judge(
    line: str, model: str | None, version: str, about: Mapping[str, Any] = {}
) -> list[Refusal]:
    config = MODELS[model] if model else None
    args = ["org/model", *line.split()]
    assert flags.table("vllm", version).check(args) == []
    return refusals(ServeRequest.from_command(version, args, model=config, **about))


def test_every_rule_has_a_case() -> None:
    assert sorted(BY_RULE) == sorted(rule.id for rule in RULES)
    assert len({rule.id for rule in RULES}) == len(RULES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_rule_refuses(case: Case) -> None:
    found = judge(case.refused, case.model, case.version, case.about)
    [refusal] = [each for each in found if each.id == case.rule]
    assert refusal.sentence.endswith(".")
    assert refusal.fix.endswith(".")
    assert case.version in refusal.source


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_closest_right_line_passes(case: Case) -> None:
    about = case.about if case.passed_about is None else case.passed_about
    found = judge(case.passed, case.passed_model or case.model, case.version, about)
    assert found == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_without_the_model_s_configuration_nothing_is_claimed_of_it(case: Case) -> None:
    about = case.about if case.passed_about is None else case.passed_about
    assert judge(case.passed, None, case.version, about) == []


def test_a_plain_line_passes_in_every_release() -> None:
    line = "-tp 4 -pp 2 --distributed-executor-backend ray --max-model-len 4096"
    for version in flags.versions("vllm"):
        about = {"hosts": 2, "gpus_per_host": 4, "compute_capability": (8, 0)}
        assert judge(line, "llama", version, about) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_silent_outside_of_its_releases(rule: Any) -> None:
    case = BY_RULE[rule.id]
    for version in flags.versions("vllm"):
        if rule.applies_to(version):
            continue
        args = ["org/model", *case.refused.split()]
        request = ServeRequest.from_command(
            version, args, model=MODELS[case.model], **dict(case.about)
        )
        assert rule.id not in [each.id for each in refusals(request)]


def test_the_source_is_named_at_its_place_in_each_release() -> None:
    places = {
        version: judge("--enable-auto-tool-choice", "llama", version)[0].source
        for version in flags.versions("vllm")
    }
    assert places == {
        "0.26.0": "vllm/entrypoints/openai/cli_args.py (0.26.0)",
        "0.27.1": "vllm/entrypoints/openai/cli_args.py (0.27.1)",
        "0.32.0": "vllm/entrypoints/launchers/cli_args.py (0.32.0)",
        "0.33.0": "vllm/entrypoints/common/cli_args.py (0.33.0)",
    }


def test_what_vllm_says_of_models_is_in_the_tables() -> None:
    limits = ServeRequest("0.33.0").limits
    assert "LlamaForCausalLM" in limits.models["known"]
    assert "LlamaForCausalLM" not in limits.models["no_pipeline"]
    assert {"Mamba2ForCausalLM", "BertModel"} <= set(limits.models["no_pipeline"])
    assert limits.quantisation["methods"]["mxfp4"]["min_capability"] == 80
    assert "bitsandbytes" not in limits.quantisation["methods"]
    assert "bitsandbytes" in ServeRequest("0.26.0").limits.quantisation["methods"]
    assert limits.attention["FLASHMLA"]["capabilities"] == [90, 100, 103]
