"""What the hosts consist of at the end of a run, for the day on which one is made anew."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import fingerprint
from vllm_cluster.steps import here


@deploy("Fingerprint")
def fingerprint_step() -> None:
    """Keep every host's fingerprint on this machine."""
    known = here.known()
    fingerprint.kept(
        name="Keep what the host consists of, for a rebuild",
        cluster=known.cluster,
        weights=here.plan().weights_directory,
    )
