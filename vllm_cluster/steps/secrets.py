"""The Ray token on every host, the API key on the head, each in a file for root alone."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import files
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.plan import paths
from vllm_cluster.steps import here


@deploy("Secrets")
def secrets_step() -> None:
    """Write the secrets that this host needs."""
    secrets = here.known().secrets
    wanted: dict[str, File | Directory] = {}
    if here.plan().backend == "ray":
        wanted[paths.RAY_TOKEN] = File(secrets["ray_token"] + "\n", mode="600", secret=True)
    if here.this().role == "head" and here.plan().api_key:
        wanted[paths.API_KEY] = File(secrets["api_key"] + "\n", mode="600", secret=True)
    if wanted:
        files.place(name="Write the Ray token and the API key", wanted=wanted)
