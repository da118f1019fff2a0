"""The image, present by its ID on every host before any unit starts."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import docker
from vllm_cluster.steps import here


@deploy("Image")
def image_step() -> None:
    """Send or pull the image where it is missing."""
    plan = here.plan()
    docker.image_present(
        name="Have the image with vLLM and Ray",
        image=plan.image,
        archive=here.known().archive,
        pull=plan.image_pull,
    )
