"""Broken descriptions: one message a person can act on, with line, key, and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.spec import DescriptionError, loads

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"


def problems(text: str) -> DescriptionError:
    with pytest.raises(DescriptionError) as caught:
        loads(text, Path("prod.yaml"))
    return caught.value


def edited(old: str, new: str) -> str:
    text = PROD.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in prod.yaml"
    return text.replace(old, new, 1)


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


# (what to replace, by what, the key, words of what was found, words of what is accepted)
BROKEN = [
    ("  pipeline: 2", "  pipelines: 2", "parallel.pipelines", "unknown key", "pipeline?"),
    ("head: node-a", "hed: node-a", "hed", "unknown key", "head?"),
    ("head: node-a", "head: node-c", "head", "'node-c', which is not under hosts", "node-a, node-b"),
    ("cluster: llama-70b", "cluster: Llama 70B", "cluster", "Llama 70B", "lower-case"),
    ("192.168.1.11", "192.168.1.10", "hosts.node-b.address", "address of node-a too", "no other"),
    ("192.168.1.11", "127.0.0.1", "hosts.node-b.address", "'127.0.0.1'", "not loopback"),
    ("192.168.1.11", "0.0.0.0", "hosts.node-b.address", "'0.0.0.0'", "IPv4 address"),
    ("192.168.1.11", "169.254.1.1", "hosts.node-b.address", "169.254.1.1", "not link-local"),
    ("192.168.1.11", "192.168.1.255", "hosts.node-b.address", "broadcast address", "can have"),
    ("192.168.1.11", "192.168.1.0", "hosts.node-b.address", "the network address", "can have"),
    ("192.168.1.11", "3232235787", "hosts.node-b.address", "written with dots", "IPv4 address"),
    ("192.168.1.0/24", "0.0.0.0/0", "network.fabric", "0.0.0.0/0", "/8 or smaller"),
    ("head: node-a", "head: node-a\n<<: {}", "<<", "a merge key", "written out"),
    ("192.168.1.11", "node-b", "hosts.node-b.address", "'node-b'", "IPv4 address"),
    ("192.168.1.11", "10.0.0.11", "hosts.node-b.address", "10.0.0.11", "192.168.1.0/24"),
    ("  node-b:", "  localhost:", "hosts.localhost", "loopback", "not localhost"),
    ("  node-b:", '  "17":', "hosts.17", "digits alone", "not digits alone"),
    ("  node-b:", "  node_b:", "hosts.node_b", "not a host name", "lower-case"),
    ("    gpus: 4\n  node-b", "    gpus: 0\n  node-b", "hosts.node-a.gpus", "0", "1 to 64"),
    ("  tensor: 4", "  tensor: 3", "hosts.node-a.gpus", "4", "a multiple of parallel.tensor (3)"),
    ("  pipeline: 2", "  pipeline: 4", "parallel.pipeline", "16 processes for 8 GPUs", "4 x 2"),
    ("  tensor: 4", "  tensor: four", "parallel.tensor", "'four'", "whole number"),
    ("  tensor: 4", "  tensor: true", "parallel.tensor", "True", "whole number"),
    ("head: node-a", "head: node-a\nworkers: [node-a, node-b]", "workers[0]", "is the head", "not it"),
    ("head: node-a", "head: node-a\nworkers: []", "workers", "no role for node-b", "every host"),
    ("head: node-a", "head: node-a\nworkers: [node-z]", "workers[0]", "not under hosts", "node-b"),
    ("  port: 8000", "  port: 6379", "serve.port", "port of ports.gcs too", "of its own"),
    ("  port: 8000", "  port: 20500", "serve.port", "among ports.worker_first", "of its own"),
    ("  port: 8000", "  port: 40000", "serve.port", "ephemeral range", "below 32768"),
    ("  port: 8000", "  port: 70000", "serve.port", "70000", "1 to 65535"),
    ("memory:\n", "ports: {gcs: 50000}\nmemory:\n", "ports.gcs", "ephemeral", "below 32768"),
    ("memory:\n", "ports: {gcs: 6380}\nmemory:\n", "ports.node_manager", "ports.gcs too", "own"),
    ("memory:\n", "ports: {worker_last: 20010}\nmemory:\n", "ports.worker_last", "11 ports", "99"),
    ("directory: llama-3.3-70b-instruct", "directory: ../../etc", "model.directory", "leaves", "without .."),
    ("directory: llama-3.3-70b-instruct", "directory: /etc", "model.directory", "leaves", "relative"),
    ("directory: llama-3.3-70b-instruct", "directory: a b", "model.directory", "'a b'", "letters"),
    ("/var/lib/vllm-cluster/models", "models", "weights.directory", "'models'", "absolute path"),
    ("/var/lib/vllm-cluster/models", "/a/../b", "weights.directory", "/a/../b", "absolute path"),
    ("shm: 32GiB", "shm: plenty", "memory.shm", "'plenty'", "64MiB or more"),
    ("shm: 32GiB", "shm: 1MiB", "memory.shm", "1MiB", "64MiB or more"),
    ("object_store: 2GiB", "object_store: 30GiB", "memory.object_store", "bytes of shm", "half"),
    ("    max-model-len: 8192", "    tp: 4", "serve.args.tp", "the argument tp", "parallel.tensor"),
    ("    max-model-len: 8192", "    api-key: x", "serve.args.api-key", "api-key", "secrets.api_key"),
    ("    max-model-len: 8192", "    disable_log_stats: true", "serve.args.disable_log_stats", "disable_log_stats", "the watchdog reads"),
    ("  args:", "  env: {VLLM_API_KEY: x}\n  args:", "serve.env.VLLM_API_KEY", "VLLM_API_KEY", "secrets"),
    ("api_key: generate", "api_key: {}", "secrets.api_key", "empty mapping", "exactly one"),
    ("api_key: generate", "api_key: {env: A, file: b}", "secrets.api_key", "env, file", "exactly one"),
    ("vllm: 0.33.0", "vllm: latest", "image.vllm", "'latest'", "0.33.0"),
    ("  fabric: 192.168.1.0/24", "  fabric: 192.168.1.9/24", "network.fabric", "1.9/24", "192.168.1.0/24"),
    ("  api_from: [192.168.0.0/16]", "  api_from: []", "network.api_from", "[]", "networks"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "found", "accepted"), BROKEN)
def test_a_broken_value_is_named_with_line_key_and_what_is_accepted(
    old: str, new: str, key: str, found: str, accepted: str
) -> None:
    error = problems(edited(old, new))
    named = [problem for problem in error.problems if problem.key == key]
    assert named, f"{key} is not named in:\n{error}"
    assert found in named[0].found
    assert accepted in named[0].accepted
    assert named[0].line > 0
    assert f"prod.yaml:{named[0].line}: {key}: found " in error.text()


def test_the_line_is_the_one_of_the_value() -> None:
    text = edited("192.168.1.11", "127.0.0.1")
    assert problems(text).problems[0].line == line_of(text, "127.0.0.1")


def test_every_problem_is_told_at_once() -> None:
    text = edited("192.168.1.11", "127.0.0.1")
    text = text.replace("shm: 32GiB", "shm: plenty").replace("head: node-a", "head: node-q")
    text = text.replace("  pipeline: 2", "  pipelines: 2").replace("port: 8000", "port: 6379")
    keys = {problem.key for problem in problems(text).problems}
    assert keys >= {
        "hosts.node-b.address", "memory.shm", "head", "parallel.pipelines", "serve.port",
    }  # fmt: skip


@pytest.mark.parametrize(
    "key", ["cluster", "hosts", "head", "network", "parallel", "image", "model"]
)
def test_a_missing_key_is_named(key: str) -> None:
    lines = PROD.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith(f"{key}:"))
    rest = (n for n, line in enumerate(lines) if n > begin and line[:1] not in {" ", "#", ""})
    text = "\n".join(lines[:begin] + lines[next(rest) :])
    named = [problem for problem in problems(text).problems if problem.key == key]
    assert named
    assert "missing" in named[0].found


def test_a_typo_in_a_mapping_that_could_be_a_word_is_told_once() -> None:
    error = problems(edited("  pipeline: 2", "  pipelines: 2"))
    assert [p.key for p in error.problems if p.key.startswith("parallel")] == ["parallel.pipelines"]


def test_a_missing_host_leaves_gpus_that_do_not_match() -> None:
    text = edited("  node-b:\n    address: 192.168.1.11\n    gpus: 4\n", "")
    error = problems(text)
    assert [problem.key for problem in error.problems] == ["parallel.pipeline"]
    assert "8 processes for 4 GPUs" in error.problems[0].found


WHOLE = [
    ("ssh:\n  port: 022\n", 2, "the number 022", "without a 0 first"),
    ("ssh:\n  port: 1:30\n", 2, "the number 1:30", "a decimal number"),
    ("", 0, "an empty file", "inventories/prod.yaml"),
    ("# only a comment\n", 0, "an empty file", "inventories/prod.yaml"),
    ("- a\n- b\n", 0, "a list at the top", "a mapping"),
    ("just words\n", 0, "a single value at the top", "a mapping"),
    ("cluster: a\nhosts:\n\tnode-a: 1\n", 3, "a tab in the indentation", "spaces"),
    ("hosts: {\n", 2, "", "YAML"),
    ("cluster: a\ncluster: b\n", 2, "the key again (first on line 1)", "one of it"),
    ("hosts: &a\n  b: *a\n", 2, "alias", "plain values"),
    ("cluster: !!python/object:os.system x\n", 1, "the tag", "a plain value"),
    ("? [a, b]\n: c\n", 1, "a key that is not text", "a name as key"),
]


@pytest.mark.parametrize(("text", "line", "found", "accepted"), WHOLE)
def test_a_file_that_is_no_description_says_why(
    text: str, line: int, found: str, accepted: str
) -> None:
    problem = problems(text).problems[0]
    assert problem.line == line
    assert found in problem.found
    assert accepted in problem.accepted


def test_a_secret_written_into_the_file_is_not_shown() -> None:
    error = problems(edited("api_key: generate", "api_key: hunter2-secret"))
    assert error.problems[0].key == "secrets.api_key"
    assert "hunter2" not in error.text()


def test_a_wrong_type_of_section_is_named() -> None:
    error = problems(edited("hosts:\n", "hosts: none\nspare:\n"))
    assert {"hosts", "spare"} <= {problem.key for problem in error.problems}
