"""The units: Ray head, Ray workers, vLLM."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import files, units
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.operations.units import Unit
from vllm_cluster.plan import containers, environment, paths
from vllm_cluster.steps import configs, here
from vllm_cluster.steps.here import known
from vllm_cluster.steps.render import render


@deploy("Units")
def units_step() -> None:
    """Write the units and what they read; stop those that run something older."""
    env = environment_text()
    # Asked for when they run: which model a revision is may be known only once a host has it.
    files.place(
        name="Write the environment and the units of Ray and vLLM", wanted=lambda: wanted_files(env)
    )
    units.ended(
        name="Stop what runs an older configuration, or a role that this host has no more",
        units=lambda: list(reversed(_units(env))),
        former=[
            Unit(f"{name}.service", name)
            for name in containers.EVERY
            if name not in here.this().units
        ],
    )


@deploy("Ray and vLLM")
def start_step() -> None:
    """Start Ray everywhere, then vLLM on the head, which waits until Ray shows every GPU."""
    env, ray, address = environment_text(), here.plan().backend == "ray", here.this().address
    units.active(
        name="Start Ray" if ray else "Start vLLM",
        units=lambda: [*_timers(), *(u for u in _units(env) if not ray or u.container != "vllm")],
        serves=address,
    )
    if here.this().role == "head" and ray:
        units.active(
            name="Start vLLM and wait for a completion",
            units=lambda: _units(env)[-1:],
            serves=address,
        )


def wanted_files(env: str) -> dict[str, File | Directory]:
    """All that belongs to this generation on this host; `env` is the text of cluster.env."""
    plan, this = here.plan(), here.this()
    wanted: dict[str, File | Directory] = {
        # It asks for the model by its name, on its port: the one that serves, not the next.
        f"{paths.SCRIPTS}/probe.py": File(configs.probe_file(plan, this), mode="755"),
        paths.ENVIRONMENT: File(env),
        f"{paths.VLLM_CONFIG}/ray_non_carry_over_env_vars.json": File(
            environment.not_carried_json(), ours=False
        ),
    }
    for unit in _units(env):
        path = f"{paths.UNITS}/{unit.name}"
        wanted[path] = File(configs.unit_file(plan, this, unit.container, unit.config))
    path = f"{paths.UNITS}/vllm-cluster-watch@.service"
    wanted[path] = File(render(path, plan=plan, paths=paths))
    if plan.weights.copied:
        for kind in ("service", "timer"):
            path = f"{paths.UNITS}/{paths.WEIGHTS_VERIFY}.{kind}"
            wanted[path] = File(render(path, plan=plan, paths=paths))
    return wanted


def _timers() -> list[Unit]:
    """The month's reading of all weights, where hosts have copies of their own."""
    return [Unit(f"{paths.WEIGHTS_VERIFY}.timer")] if here.plan().weights.copied else []


def environment_text() -> str:
    """The text of cluster.env on this host."""
    plan, this = here.plan(), here.this()
    return configs.environment_file(plan, this, here.interface())


def _units(env: str) -> list[Unit]:
    plan, this = here.plan(), here.this()
    configured = {
        unit: configs.digest(plan, this, unit, env, known().secrets) for unit in this.units
    }
    return [
        Unit(
            name=f"{unit}.service",
            container=unit,
            config=config,
            started_from=configs.started_digest(configs.unit_file(plan, this, unit, config), env),
            # A worker waits for its head, and vLLM for every worker: only vLLM is waited for.
            wait=unit == "vllm",
        )
        for unit, config in configured.items()
    ]
