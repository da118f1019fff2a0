"""The Ray token on every host, the API key on the head, each in a file for root alone.

Every process is told to use a token (RAY_AUTH_MODE) and where its file is; no value passes
through a unit, a command line or the environment of a container.
"""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import files, secrets
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.plan import paths
from vllm_cluster.steps import here


@deploy("Secrets")
def secrets_step() -> None:
    """Write the secrets that this host needs."""
    files.place(name="Write the Ray token and the API key", wanted=_wanted())


@deploy("Former secrets")
def former_secrets_step() -> None:
    """Leave no other secret on the host, once what a former role ran with it has ended."""
    secrets.only(
        name="Leave no other secret on the host", directory=paths.SECRETS, keep=list(_wanted())
    )


def _wanted() -> dict[str, File | Directory]:
    values = here.known().secrets
    wanted: dict[str, File | Directory] = {paths.SECRETS: Directory(mode="700")}
    if here.plan().backend == "ray":
        wanted[paths.RAY_TOKEN] = File(values["ray_token"] + "\n", mode="600", secret=True)
    if "vllm" in here.this().units and here.plan().api_key:
        wanted[paths.API_KEY] = File(values["api_key"] + "\n", mode="600", secret=True)
    return wanted
