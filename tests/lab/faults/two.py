"""Faults of two hosts: head node-a, worker node-b."""

from __future__ import annotations

from functools import partial

from tests.lab.faults.fault import Fault, both, cable, for_s, inside, on, pause, power
from tests.lab.harness import Cluster, await_true

GCS, RAYLET, RANK = "gcs/gcs_server", "raylet/raylet ", "RayWorkerProc"
ENGINE, SERVER = "VLLM::EngineCore", "bin/vllm serve"
# Of serve.hang_timeout_s in the suite's description.
HANG_S = 30
HUNG = f"serve.hang_timeout_s = {HANG_S} s of this description"
HEALTH = (
    "Ray's health check of a node: 5 times 10 s without an answer, one every 3 s "
    "(health_check_* of ray_config_def.h)"
)


def leftover(cluster: Cluster) -> None:
    """A process that outlives the rank that started it, as one that holds GPU memory does."""
    cluster.on(
        "node-b", "docker exec -d ray-worker bash -c 'exec -a leftover-of-a-rank sleep 9999'"
    )
    assert "leftover" in cluster.on("node-b", "docker top ray-worker -eo pid,args")
    cluster.on("node-b", "docker kill ray-worker")


def no_leftover(cluster: Cluster) -> None:
    """Containers end with everything in them."""
    assert "leftover-of-a-rank" not in cluster.on("node-b", "ps -eo args")


def thrice(cluster: Cluster) -> None:
    """A raylet killed for the third time, each time as soon as it serves again."""
    kill = inside("node-b", "ray-worker", RAYLET)
    for _ in range(2):
        before = _start_of_vllm(cluster)
        kill(cluster)
        await_true("another vLLM that serves", partial(_serves_anew, cluster, before), 600)
    kill(cluster)


def _start_of_vllm(cluster: Cluster) -> str:
    return cluster.on("node-a", "systemctl show --property=InvocationID --value vllm").strip()


def _serves_anew(cluster: Cluster, former: str) -> bool:
    state = cluster.on("node-a", "systemctl is-active vllm", check=False).strip()
    return state == "active" and _start_of_vllm(cluster) != former


def session_anew(cluster: Cluster) -> None:
    """The Ray session is another, and the head's journal says for which end of vLLM."""
    said = cluster.on("node-a", "journalctl --unit=ray-head --output=cat --lines=400")
    why = "the Ray session is made anew before start 3 of vllm; the end of the last one: "
    told = [line.removeprefix(why) for line in said.splitlines() if line.startswith(why)]
    assert told, said
    assert "names no cause" not in told[-1]


FAULTS = (
    Fault("gcs", "the head's GCS killed", inside("node-a", "ray-head", GCS)),
    Fault("engine", "vLLM's engine core killed (vLLM then ends with 0)",
          inside("node-a", "vllm", ENGINE)),
    Fault("rank-worker", "a rank killed on the worker", inside("node-b", "ray-worker", RANK)),
    Fault("cable-10s", "the worker's cable is out for 10 s",
          for_s(10, cable("node-b", up=False), cable("node-b", up=True)), restarts=False,
          forced="TCP's retransmission: the next try comes up to as late as the cable was out"),
    Fault("raylet-worker", "the raylet killed on the worker",
          inside("node-b", "ray-worker", RAYLET)),
    Fault("engine-hangs", "vLLM's engine core hangs; /health and /v1/models say 200",
          inside("node-a", "vllm", ENGINE, "STOP"), limit_s=HANG_S + 30, forced=HUNG),
    Fault("worker-container", "the worker's container killed",
          on("node-b", "docker kill ray-worker")),
    Fault("head-container", "the head's container killed", on("node-a", "docker kill ray-head")),
    Fault("power-worker", "the worker loses power and gets it back",
          both(power("node-b", "cut"), power("node-b", "on")), limit_s=110, forced=HEALTH),
    Fault("dockerd-restart-worker", "dockerd restarted on the worker",
          on("node-b", "systemctl restart docker")),
    Fault("power-both", "both hosts lose power and get it back",
          both(power("node-b", "cut"), power("node-a", "cut"), power("node-a", "on"),
               power("node-b", "on")), limit_s=40),
    Fault("dockerd-restart-head", "dockerd restarted on the head",
          on("node-a", "systemctl restart docker")),
    Fault("rank-hangs", "a rank on the worker hangs; /health and /v1/models say 200",
          inside("node-b", "ray-worker", RANK, "STOP"), limit_s=HANG_S + 30, forced=HUNG),
    Fault("session", "a fresh Ray session while the worker holds the old one",
          on("node-a", "systemctl restart --no-block ray-head"), limit_s=40,
          forced="ray.drain_timeout_s of a stop that was asked for"),
    Fault("raylet-head", "the raylet killed on the head", inside("node-a", "ray-head", RAYLET)),
    Fault("vllm-container", "vLLM's container killed", on("node-a", "docker kill vllm")),
    Fault("server-hangs", "vLLM's API server hangs",
          inside("node-a", "vllm", SERVER, "STOP"), limit_s=HANG_S + 30, forced=HUNG),
    Fault("reboot-worker", "the worker reboots",
          both(power("node-b", "off"), power("node-b", "on")), limit_s=40,
          forced="the boot of the lab's host"),
    Fault("power-head", "the head loses power and gets it back",
          both(power("node-a", "cut"), power("node-a", "on")), limit_s=40),
    Fault("gcs+rank", "the GCS and a rank on the worker killed at once",
          both(inside("node-b", "ray-worker", RANK), inside("node-a", "ray-head", GCS))),
    Fault("dockerd+engine", "dockerd restarted on the worker while the engine hangs",
          both(inside("node-a", "vllm", ENGINE, "STOP"), on("node-b", "systemctl restart docker")),
          limit_s=HANG_S + 30, forced=HUNG),
    Fault("cable-5min", "the worker's cable is out for 5 min",
          for_s(300, cable("node-b", up=False), cable("node-b", up=True)), limit_s=60),
    Fault("raylet-hangs", "the raylet on the worker hangs",
          inside("node-b", "ray-worker", RAYLET, "STOP"), limit_s=110, forced=HEALTH),
    Fault("leftover", "a process of a rank outlives it, and its container is killed", leftover,
          proof=no_leftover),
    Fault("dockerd-stopped", "dockerd stopped on the worker, started after 30 s",
          for_s(30, on("node-b", "systemctl stop docker.service docker.socket"),
                on("node-b", "systemctl start docker.socket docker.service"))),
    Fault("server", "vLLM's API server killed", inside("node-a", "vllm", SERVER)),
    Fault("rank-head", "a rank killed on the head", inside("node-a", "ray-head", RANK)),
    Fault("dockerd-killed", "dockerd killed on the head",
          on("node-a", "systemctl kill --signal=SIGKILL docker.service")),
    Fault("reboot-head", "the head reboots", both(power("node-a", "off"), power("node-a", "on")),
          limit_s=40, forced="the boot of the lab's host"),
    Fault("power-worker+gcs", "the worker loses power, and the GCS is killed as it comes back",
          both(power("node-b", "cut"), power("node-b", "on"), inside("node-a", "ray-head", GCS)),
          limit_s=40),
    Fault("raylet-thrice", "the raylet killed on the worker for the third time in ten minutes",
          thrice, limit_s=50, proof=session_anew,
          forced="pauses before third starts, and a Ray session made anew"),
    Fault("late-worker", "after a power cut the worker boots 10 minutes later than the head",
          both(power("node-b", "cut"), power("node-a", "cut"), power("node-a", "on"), pause(600),
               power("node-b", "on")), limit_s=40),
)  # fmt: skip
