"""The image, present by its ID on every host before any unit starts."""

from pyinfra.api.deploy import deploy

from vllm_cluster.image.spread import Terms, Wanted
from vllm_cluster.operations import docker
from vllm_cluster.steps import here


@deploy("Image")
def image_step() -> None:
    """Fetch the image once, then bring it from host to host, where it is missing."""
    known, plan = here.known(), here.plan()
    description = known.cluster.description
    docker.image_present(
        name="Have the image with vLLM and Ray",
        wanted=Wanted(plan.image, known.archive, plan.image_pull),
        terms=Terms(
            description.ports.images,
            known.secrets.get("ray_token", ""),
            description.storage.reserve,
        ),
        addresses={name: other.address for name, other in plan.hosts.items()},
    )
