"""Settings of the kernel with their reasons, shared memory, and clocks that agree."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import kernel, units
from vllm_cluster.operations.files import File
from vllm_cluster.operations.kernel import Tuning
from vllm_cluster.operations.units import Unit
from vllm_cluster.plan import paths
from vllm_cluster.plan.kernel import FILE, Setting, settings
from vllm_cluster.steps import here
from vllm_cluster.steps.render import render

SHM_UNIT = "vllm-cluster-shm.service"
_SHM_FILE = f"{paths.UNITS}/{SHM_UNIT}"
_NTP = "/etc/systemd/timesyncd.conf.d/vllm-cluster.conf"


@deploy("Kernel")
def kernel_step() -> None:
    """Tune what needs it, and compare the hosts' clocks."""
    description, plan = here.known().cluster.description, here.plan()
    overrides, clock = description.kernel.sysctl, description.clock
    host_shm = description.memory.ipc == "host"
    kernel.tuned(
        name="Set what the kernel needs for many connections and pinned memory",
        wanted=Tuning(
            settings=settings(plan.ports, overrides),
            explicit=frozenset(overrides),
            text=_text,
            files=_files(host_shm, clock.servers),
            shm_bytes=plan.shm_bytes,
            host_shm=host_shm,
            time_service=clock.service == "auto",
            servers=bool(clock.servers),
        ),
    )
    if host_shm:
        units.active(
            name="Make the host's shared memory as large as declared",
            units=[Unit(SHM_UNIT, files=(_SHM_FILE,))],
        )
    if clock.servers:
        units.active(
            name="Ask the declared time servers",
            units=[Unit("systemd-timesyncd.service", files=(_NTP,))],
        )
    kernel.clock_read(name="Read the clock")
    kernel.clocks_agree(name="Compare the clocks", head=plan.head, max_offset_s=clock.max_offset_s)


def _text(resolved: list[Setting]) -> str:
    return render(FILE, plan=here.plan(), settings=resolved)


def _files(host_shm: bool, servers: list[str]) -> dict[str, File]:
    plan = here.plan()
    wanted: dict[str, File] = {}
    if host_shm:
        wanted[_SHM_FILE] = File(render(_SHM_FILE, plan=plan, shm_bytes=plan.shm_bytes))
    if servers:
        wanted[_NTP] = File(render(_NTP, plan=plan, servers=servers))
    return wanted
