"""What a rebuild must reproduce, in the lock file: written whole, and held against a run.

Only `vllm-cluster lock` writes it. A lock file without `hosts` holds revisions alone (control.lock)
and binds no host.
"""

from __future__ import annotations

from vllm_cluster.control import lock
from vllm_cluster.control.context import Context
from vllm_cluster.plan.pins import FIX, HostPins, Pins, declared_drift
from vllm_cluster.spec import Cluster, Problem, RefusedError


def read(cluster: Cluster) -> Pins | None:
    """What is locked; None where nothing is. Raises DescriptionError for a file that is no lock."""
    path = lock.lock_file(cluster)
    try:
        content = lock.load(path)
        return Pins.from_data(content) if "hosts" in content else None
    except (OSError, ValueError) as error:
        raise lock.broken(path, str(error)) from None


def write(cluster: Cluster, pins: Pins) -> bool:
    """Write what is locked and leave the rest of the file. False where it says that already.

    Raises DescriptionError for a file that is no lock.
    """
    path = lock.lock_file(cluster)
    with lock.alone(cluster):
        try:
            before = lock.load(path)
        except (OSError, ValueError) as error:
            raise lock.broken(path, str(error)) from None
        after = before | pins.to_data()
        if after == before:
            return False
        lock.save(path, after)
    return True


def declared(known: Context) -> Pins:
    """Model and image as the description names them."""
    image = {"reference": known.cluster.description.image.reference}
    if known.archive is not None:
        image["id"] = known.plan.image
    weights = known.plan.weights
    model = {"name": known.plan.model_name, "revision": weights.revision}
    if weights.identity:
        model["identity"] = weights.identity
    return Pins(cluster=known.cluster.description.cluster, model=model, image=image)


def enforce(known: Context) -> Pins | None:
    """The lock that a run is under; None without one.

    Raises RefusedError where the description names another model or image than the lock does.
    """
    pins = read(known.cluster)
    if pins is None:
        return None
    problems = [
        Problem(0, drift.key, f"{drift.found}, but {drift.locked} is locked", f"the latter. {FIX}")
        for drift in declared_drift(pins, declared(known))
    ]
    if problems:
        raise RefusedError(lock.lock_file(known.cluster), problems)
    return pins


def host(cluster: Cluster, name: str) -> HostPins:
    """What is locked of one host; nothing where there is no lock, or none of this host."""
    pins = read(cluster)
    return HostPins() if pins is None else pins.hosts.get(name, HostPins())
