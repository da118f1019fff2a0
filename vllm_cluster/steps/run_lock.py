"""Nobody acts twice: the lock on all hosts, first in every deploy."""

from pathlib import Path

from pyinfra.api.deploy import deploy
from pyinfra.context import host

from vllm_cluster.control.bearer import bearer
from vllm_cluster.operations import run_lock
from vllm_cluster.operations.refuse import tell_last


@deploy("Lock")
def lock_step(file: str) -> None:
    """Refuse while another run is under way; `file` is the deploy's `__file__`."""
    tell_last(host.state)
    run_lock.held(name="Let no other run act at the same time", bearer=bearer(Path(file).name))
