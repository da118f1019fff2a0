"""Hands prod.yaml to pyinfra as the groups `head` and `workers`."""

from pathlib import Path

from vllm_cluster.inventory import groups

head, workers = groups(Path(__file__).with_name("prod.yaml"))
