"""The model on a host, in one round trip: names, sizes, times, the manifest's hash; no weights."""

from __future__ import annotations

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from vllm_cluster.placing.remote import look_script_of
from vllm_cluster.plan.weights import WeightsPlan
from vllm_cluster.weights.seen import Seen, read_look


class ModelThere(FactBase[Seen]):
    """What the agent on the host sees of the plan's model, and which agent that is."""

    @staticmethod
    def default() -> Seen:
        return Seen(problem="the agent is missing")

    def command(self, weights: WeightsPlan) -> StringCommand:
        return StringCommand("sh", "-c", QuoteString(look_script_of(weights)))

    def process(self, output: list[str]) -> Seen:
        return read_look(output)
