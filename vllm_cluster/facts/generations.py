"""The generations that a host keeps, in one round trip."""

from __future__ import annotations

import json

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan import paths
from vllm_cluster.plan.generations import Kept, read

TOOL = paths.GENERATION_TOOL


class Generations(FactBase[Kept]):
    """See Kept. A host that no deploy has been to keeps none."""

    @staticmethod
    def default() -> Kept:
        return Kept()

    def command(self) -> StringCommand:
        return StringCommand(f"[ ! -x {TOOL} ] || {TOOL} show")

    def process(self, output: list[str]) -> Kept:
        try:
            return read("\n".join(output))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise FactProcessError(f"{TOOL} show: {error}") from error
