"""The weights, whole and verified on every host before vLLM starts."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import weights
from vllm_cluster.steps import here


@deploy("Weights")
def weights_step() -> None:
    """Place the model where it is missing or not whole."""
    known = here.known()
    assert known.manifest is not None  # noqa: S101
    assert known.source is not None  # noqa: S101
    weights.placed(
        name=f"Have the weights of {known.plan.model_name}",
        path=known.plan.model_path,
        manifest=known.manifest,
        source=known.source,
    )
