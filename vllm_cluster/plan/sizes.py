"""The sizes of a settled description."""

from __future__ import annotations

from vllm_cluster.spec.model import Description, Parallel


class UnsettledError(ValueError):
    """`parallel: auto` where nothing was decided yet: the model's facts are needed first."""


def concrete(description: Description) -> Parallel:
    """The sizes of `description`. Raises UnsettledError for `auto`: settle it first."""
    if not isinstance(description.parallel, Parallel):
        raise UnsettledError("parallel: auto is not settled")
    return description.parallel


def uses_ray(description: Description) -> bool:
    """Whether one replica spans hosts; within a host vLLM's own mp executor does."""
    return len(description.hosts) > 1 and concrete(description).replicas == 1
