"""Which arguments `vllm serve` and `ray start` take, in each release that was read.

    >>> vllm = table("vllm", "0.33.0")
    >>> [each.sentence for each in vllm.check(["org/model", "--worker-port-min", "20000"])]

The tables lie beside this module in data/, written by scripts/flags.py from the released packages.
Only the one asked for is loaded. docs/flags.md says how they are made and what was checked.
"""

from vllm_cluster.plan.flags.flag import Flag
from vllm_cluster.plan.flags.problem import FlagProblem, Kind
from vllm_cluster.plan.flags.table import (
    FlagTable,
    Tool,
    UnknownVersionError,
    table,
    versions,
)

__all__ = [
    "Flag",
    "FlagProblem",
    "FlagTable",
    "Kind",
    "Tool",
    "UnknownVersionError",
    "table",
    "versions",
]
