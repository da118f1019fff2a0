"""NVIDIA's driver, checked and held; the container toolkit; GPUs that containers keep."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import files, gpu, units
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.operations.units import Unit
from vllm_cluster.plan import apt, paths
from vllm_cluster.plan.apt import Repository, System
from vllm_cluster.plan.gpu import UNATTENDED, Wanted
from vllm_cluster.steps import here
from vllm_cluster.steps.render import plain, render

UNIT = "vllm-cluster-gpus.service"
_SCRIPT = f"{paths.SCRIPTS}/gpus-ready"
_UPGRADES = "/etc/apt/apt.conf.d/52vllm-cluster-nvidia"
_UDEV = "/etc/udev/rules.d/71-vllm-cluster-nvidia.rules"


@deploy("GPU")
def gpu_step() -> None:
    """Everything between the bare driver and a container that asks for GPUs."""
    if here.plan().accelerator != "nvidia":
        return
    description, cluster = here.known().cluster.description, here.plan().cluster
    gpu.driver(
        name="Have NVIDIA's driver loaded, healthy, and safe from upgrades",
        wanted=Wanted(
            driver=description.driver,
            count=here.this().gpus,
            model=description.gpu.model,
            memory_bytes=description.gpu.memory,
        ),
        repository=_cuda,
        cluster=cluster,
    )
    gpu.toolkit(
        name=f"Have NVIDIA's container toolkit {description.toolkit.version}",
        version=description.toolkit.version,
        install=description.toolkit.install,
        repository=_toolkit,
        cluster=cluster,
    )
    _files_and_unit()


@deploy("GPUs in containers")
def gpu_kept_step() -> None:
    """Last of all: every daemon-reload before may have taken GPUs from a running container."""
    if here.plan().accelerator == "nvidia":
        gpu.kept(name="See every container keep its GPUs", containers=list(here.this().units))


def _files_and_unit() -> None:
    plan, unit = here.plan(), f"{paths.UNITS}/{UNIT}"
    wanted: dict[str, File | Directory] = {
        _UDEV: File(plain(_UDEV)),
        _SCRIPT: File(plain(_SCRIPT), mode="755"),
        unit: File(render(unit, plan=plan, script=_SCRIPT, count=here.this().gpus)),
    }
    if here.known().cluster.description.driver.hold:
        wanted[_UPGRADES] = File(render(_UPGRADES, plan=plan, patterns=UNATTENDED))
    files.place(name="Keep GPUs visible, and unattended upgrades away from them", wanted=wanted)
    units.active(
        name="Make the GPUs ready for containers, now and at every boot",
        units=[Unit(UNIT, files=(_SCRIPT, unit, "/usr/bin/nvidia-ctk"))],
    )


def _cuda(system: System) -> Repository:
    return apt.cuda(here.known().cluster.description.driver.source, system)


def _toolkit(system: System) -> Repository:
    return apt.toolkit(here.known().cluster.description.toolkit.source, system)
