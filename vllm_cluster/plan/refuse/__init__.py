"""Combinations of arguments that vLLM refuses, refused before a host is touched.

    >>> request = ServeRequest.from_command("0.33.0", ["org/model", "--nnodes", "2"], backend="ray")
    >>> [each.id for each in refusals(request)]
    ['nnodes-backend']

Each rule was read in the released sources and names the file. docs/refusals.md lists them all.
"""

from vllm_cluster.plan.refuse.every import RULES, refusals
from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, Refusal, Rule

__all__ = ["RULES", "Problem", "Refusal", "Rule", "ServeRequest", "refusals"]
