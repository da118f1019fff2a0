"""The real vLLM 0.32.0 refuses what the rules refuse, and takes what they let pass."""

import pytest

from tests.lab.image import ask
from tests.refusal_cases import CASES, MODELS, Case
from vllm_cluster.plan.refuse import RULES
from vllm_cluster.plan.refuse.limits import limits

pytestmark = pytest.mark.timeout(1300)
VERSION = "0.32.0"
SAYS = {rule.id: rule.says for rule in RULES}
# Its class is another one on each kind of device; the tables are for NVIDIA GPUs.
OF_ITS_OWN = {"DeepseekV4ForCausalLM"}
REFUSED = [case for case in CASES if case.real != "no"]
PASSED = [case for case in CASES if case.real == "both"]


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], str | None]:
    """What the real vLLM says of each line, by rule and by what is expected."""
    asked = []
    for case in REFUSED:
        asked.append((case.rule, "refused", case.model, case.refused, case.about))
    for case in PASSED:
        about = case.about if case.passed_about is None else case.passed_about
        model = case.passed_model or case.model
        asked.append((case.rule, "passed", model, case.passed, about))
    requests = [
        {"model": model, "args": line.split(), "environment": dict(about.get("environment", {}))}
        for _, _, model, line, about in asked
    ]
    answers = ask("refuse_vllm", {"models": MODELS, "requests": requests})
    return {(each[0], each[1]): answer for each, answer in zip(asked, answers, strict=True)}


def words(case: Case) -> list[str]:
    """What to find in the error: the rule's quotes, without what is filled in."""
    return [case.said] if case.said else [says.strip('"').split("{")[0] for says in SAYS[case.rule]]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.rule)
def test_vllm_refuses_for_the_same_reason(
    case: Case, verdicts: dict[tuple[str, str], str | None]
) -> None:
    said = verdicts[case.rule, "refused"]
    assert said is not None
    assert any(each in said for each in words(case)), said


@pytest.mark.parametrize("case", PASSED, ids=lambda case: case.rule)
def test_vllm_takes_the_closest_right_line(
    case: Case, verdicts: dict[tuple[str, str], str | None]
) -> None:
    assert verdicts[case.rule, "passed"] is None


def test_at_least_half_of_the_rules_are_confirmed() -> None:
    assert len(REFUSED) >= len([rule for rule in RULES if rule.applies_to(VERSION)]) // 2


def test_models_support_what_the_tables_say() -> None:
    real = ask("models_vllm")
    ours = limits(VERSION).models
    # Some classes need CUDA or torchvision to be imported: of those nothing is said here.
    unsaid = {*real["not_read"], *ours["not_read"], *OF_ITS_OWN}
    for lacking in ("no_pipeline", "no_lora"):
        assert {*real[lacking]} - unsaid == {*ours[lacking]} - unsaid
    assert len(ours["known"]) - len(unsaid) > 250
