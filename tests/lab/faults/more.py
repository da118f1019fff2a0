"""Faults of three and four hosts: what two hosts cannot show, on a worker that is not the last."""

from __future__ import annotations

from tests.lab.faults.fault import Fault, both, inside, on, power
from tests.lab.faults.two import ENGINE, GCS, HANG_S, HEALTH, HUNG, RANK, RAYLET

THREE = (
    Fault("gcs", "the head's GCS killed", inside("node-a", "ray-head", GCS)),
    Fault("rank-b", "a rank killed on the middle host", inside("node-b", "ray-worker", RANK)),
    Fault("raylet-c", "the raylet killed on the last host", inside("node-c", "ray-worker", RAYLET)),
    Fault("engine-hangs", "vLLM's engine core hangs; /health and /v1/models say 200",
          inside("node-a", "vllm", ENGINE, "STOP"), limit_s=HANG_S + 30, forced=HUNG),
    Fault("power-b-c", "both workers lose power and get it back",
          both(power("node-b", "cut"), power("node-c", "cut"), power("node-b", "on"),
               power("node-c", "on")), limit_s=110, forced=HEALTH),
)  # fmt: skip
FOUR = (
    Fault("gcs", "the head's GCS killed", inside("node-a", "ray-head", GCS)),
    Fault("rank-d", "a rank killed on the last host", inside("node-d", "ray-worker", RANK)),
    Fault("dockerd-c", "dockerd restarted on the third host",
          on("node-c", "systemctl restart docker")),
)  # fmt: skip
