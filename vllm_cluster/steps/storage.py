"""Disks first, since everything else is written on them; shares once the firewall is closed."""

from __future__ import annotations

from pyinfra.api.deploy import deploy

from vllm_cluster.image.seen import STAGING
from vllm_cluster.operations import files, packages, storage
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.plan import paths
from vllm_cluster.plan.space import Need
from vllm_cluster.plan.storage import HostStorage, Mount
from vllm_cluster.steps import here
from vllm_cluster.steps.render import render

EXPORTS = "/etc/exports.d/vllm-cluster.exports"
SERVER_DROP_IN = f"{paths.UNITS}/nfs-server.service.d/vllm-cluster.conf"
DOCKER_DROP_IN = f"{paths.UNITS}/docker.service.d/vllm-cluster-disk.conf"
DOCKER_STORE = "/var/lib/docker"
_PULLED_IMAGE_BYTES = 30 * 2**30


@deploy("Disks")
def disks_step() -> None:
    """File systems on blank declared disks, local mounts, and room for what comes next."""
    wanted = here.this().storage
    if wanted.packages:
        packages.installed(
            name="Install what the declared file systems need", packages=list(wanted.packages)
        )
    if wanted.disks:
        storage.formatted(name="Make file systems on blank declared disks", disks=wanted.disks)
    if wanted.local:
        files.place(name="Write the mount units of local disks", wanted=_local_files(wanted))
        storage.mounted(name="Mount the local disks", mounts=wanted.local, disks=wanted.disks)
    reserve = here.known().cluster.description.storage.reserve
    storage.roomy(
        name="Check the room for image, weights and logs", needs=_needs(), reserve_bytes=reserve
    )


@deploy("Shares")
def shares_step() -> None:
    """The NFS server of this cluster, if one is declared, then its clients."""
    wanted = here.this().storage
    if wanted.exports:
        files.place(name="Write the exports of the NFS server", wanted=_server_files(wanted))
        storage.exported(name="Export to the hosts of the cluster", exports=wanted.exports)
    if wanted.shares:
        units = {_unit_path(mount): _unit_file(mount) for mount in wanted.shares}
        files.place(name="Write the mount units of NFS shares", wanted=units)
        storage.mounted(name="Mount the NFS shares", mounts=wanted.shares)


def _store() -> str | None:
    return here.known().cluster.description.docker.data_root


def _unit_path(mount: Mount) -> str:
    return f"{paths.UNITS}/{mount.unit}"


def _unit_file(mount: Mount) -> File:
    return File(render(f"{paths.UNITS}/storage.mount", plan=here.plan(), mount=mount))


def _local_files(wanted: HostStorage) -> dict[str, File | Directory]:
    units: dict[str, File | Directory] = {_unit_path(m): _unit_file(m) for m in wanted.local}
    for mount in wanted.local:
        if mount.awaited and mount.device_unit:
            text = render(f"{paths.UNITS}/storage-device.conf", plan=here.plan())
            units[f"{paths.UNITS}/{mount.device_unit}.d/vllm-cluster.conf"] = File(text)
    store = _store() or DOCKER_STORE
    if wanted.holding(store):
        text = render(DOCKER_DROP_IN, plan=here.plan(), store=store)
        units[DOCKER_DROP_IN] = File(text)
    return units


def _server_files(wanted: HostStorage) -> dict[str, File | Directory]:
    texts = {path: render(path, plan=here.plan(), exports=wanted.exports)
             for path in (EXPORTS, SERVER_DROP_IN)}  # fmt: skip
    return {path: File(text) for path, text in texts.items()}


def _needs() -> tuple[Need, ...]:
    """What image and weights take; logs and sessions live on what must stay free."""
    known = here.known()
    plan, storage_ = known.plan, known.cluster.description.storage
    image_bytes = storage_.image
    if image_bytes is None:
        image_bytes = known.archive.stat().st_size if known.archive else _PULLED_IMAGE_BYTES
    return (
        # The image step knows which layers a host lacks, and counts every copy of them.
        Need(
            "the image", _store() or "docker", image_bytes,
            present=plan.image, staging=f"{_store() or DOCKER_STORE}/{STAGING}",
        ),
        Need(
            "the weights", plan.weights_directory, _weights_bytes(),
            present=plan.model_path, staging=f"{plan.weights_directory}/.staging",
        ),
        Need("logs", "/var/log", 0),
        Need("sessions of Ray and compiled kernels", paths.STATE, 0),
    )  # fmt: skip


def _weights_bytes() -> int:
    """What a copy takes; 0 where none is made, or where a host may link what it has already."""
    known = here.known()
    model = known.cluster.description.model
    linked = any(source.host is not None for source in model.ordered)
    return known.plan.weights.total_bytes if known.plan.weights.copied and not linked else 0
