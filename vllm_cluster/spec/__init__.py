"""What the person wrote, typed and checked."""

from vllm_cluster.spec.load import load, loads
from vllm_cluster.spec.model import Cluster, Description
from vllm_cluster.spec.problems import DescriptionError, Problem, RefusedError

__all__ = ["Cluster", "Description", "DescriptionError", "Problem", "RefusedError", "load", "loads"]
