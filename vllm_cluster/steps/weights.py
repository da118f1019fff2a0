"""The weights, whole and verified on every host before vLLM starts."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import weights
from vllm_cluster.steps import here


@deploy("Weights")
def weights_step() -> None:
    """Place the model where it is missing or not whole."""
    weights.placed(name=f"Have the weights of {here.plan().model_name}", known=here.context_of())
