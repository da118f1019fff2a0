"""What follows from a description. Pure functions, no I/O, no pyinfra."""

from vllm_cluster.plan.make import make_plan
from vllm_cluster.plan.model import Allow, Container, HostPlan, Plan, PortUse, Rank

__all__ = ["Allow", "Container", "HostPlan", "Plan", "PortUse", "Rank", "make_plan"]
