"""All rules together."""

from vllm_cluster.plan.refuse import (
    balancing,
    features,
    hosts,
    model_rules,
    quantised,
    scheduling,
    splitting,
)
from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Refusal, Rule

BOOKS = (hosts, balancing, splitting, scheduling, model_rules, quantised, features)
RULES: tuple[Rule, ...] = tuple(rule for module in BOOKS for rule in module.BOOK.rules)


def refusals(request: ServeRequest) -> list[Refusal]:
    """Every rule that the request breaks, in the order of the list in docs/refusals.md."""
    found = (rule.refusal(request) for rule in RULES)
    return [each for each in found if each is not None]
