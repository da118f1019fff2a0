"""A description judged with its model: what exists, what vLLM takes, what fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.control.judge import Judged, judge
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import DescriptionError, RefusedError, loads

ROOT = Path(__file__).parents[3]
PROD = (ROOT / "inventories" / "prod.yaml").read_text()
MODELS = ROOT / "tests" / "fixtures" / "models"
LAB = (ROOT / "inventories" / "lab.yaml").read_text()
AUTO = "parallel: auto\nspare:\n"
SIZES = "parallel:\n  tensor: 4\n  pipeline: 2\n  several_hosts: deliberate\n"


def judged(text: str, model: str = "Llama-3.3-70B-Instruct") -> Judged:
    text = text.replace("/srv/models/Llama-3.3-70B-Instruct", str(MODELS / model))
    return judge(loads(text, Path("prod.yaml")))


def replaced(old: str, new: str) -> str:
    assert old in PROD, old
    return PROD.replace(old, new, 1)


def test_the_example_fits_with_numbers() -> None:
    found = judged(PROD)
    assert found.decision is not None
    assert found.decision.verdict == "fits"


def test_several_hosts_for_nothing_are_refused_with_numbers() -> None:
    text = replaced("  several_hosts: deliberate\n", "")
    with pytest.raises(RefusedError) as caught:
        judged(text)
    assert caught.value.exit_code == 1
    (problem,) = caught.value.problems
    assert problem.key == "parallel"
    assert problem.line == next(
        n for n, line in enumerate(text.splitlines(), 1) if line.startswith("parallel:")
    )
    assert "one host holds the model as TP=4 x PP=1" in problem.found
    assert "several_hosts: deliberate" in problem.accepted


def test_tensor_parallelism_across_hosts_is_refused_with_what_the_link_carries() -> None:
    text = replaced(SIZES, "parallel:\n  tensor: 8\n  several_hosts: deliberate\n")
    with pytest.raises(RefusedError) as caught:
        judged(text)
    assert {problem.key for problem in caught.value.problems} == {"parallel", "parallel.tensor"}
    words = caught.value.text()
    assert "8, more than the 4 GPUs of a host" in words
    assert "25 Gbit/s carry" in words
    deliberate = text.replace("several_hosts", "tensor_across_hosts")
    plan = make_plan(judged(deliberate).cluster.description)
    assert [rank.host for rank in plan.ranks] == ["node-a"] * 4 + ["node-b"] * 4
    assert {rank.pp_rank for rank in plan.ranks} == {0}


def test_tensor_parallelism_across_hosts_is_refused_without_a_model_too() -> None:
    text = replaced(SIZES, "parallel: {tensor: 8}\n")
    with pytest.raises(RefusedError, match="8, more than the 4 GPUs of a host"):
        judge(loads(text, Path("prod.yaml")))


def test_auto_takes_one_host_where_one_suffices() -> None:
    found = judged(replaced(SIZES, "parallel: auto\n"))
    plan = make_plan(found.cluster.description)
    assert plan.backend == "mp"
    assert list(plan.hosts) == ["node-a"]
    assert (plan.tensor, plan.pipeline) in {(2, 1), (4, 1)}


def test_auto_takes_several_hosts_where_one_does_not_suffice() -> None:
    text = PROD.replace("gpus: 4", "gpus: 8").replace(SIZES, "parallel: auto\n")
    text = text.replace("A100-SXM4-80GB", "H100-80GB")
    plan = make_plan(judged(text, "Llama-3.1-405B-Instruct").cluster.description)
    assert (plan.tensor, plan.pipeline, plan.backend) == (8, 2, "ray")
    assert [rank.host for rank in plan.ranks] == ["node-a"] * 8 + ["node-b"] * 8


def test_auto_takes_a_replica_a_host_where_the_load_is_high() -> None:
    text = replaced(SIZES, "parallel: auto\n")
    text = text.replace("serve:\n", "serve:\n  full_requests: 100\n")
    plan = make_plan(judged(text).cluster.description)
    assert (plan.tensor, plan.pipeline, plan.replicas, plan.backend) == (4, 1, 2, "mp")
    assert all(host.units == ("vllm",) for host in plan.hosts.values())
    assert [(rank.replica, rank.rank) for rank in plan.ranks] == [
        (replica, rank) for replica in (0, 1) for rank in range(4)
    ]
    for host in plan.hosts.values():
        assert any(8000 in rule.ports for rule in host.allow)


@pytest.mark.parametrize("model", ["Qwen3-0.6B", "bge-large-en-v1.5"])
def test_auto_gives_a_small_model_one_gpu(model: str) -> None:
    text = replaced(SIZES, "parallel: auto\n").replace("    max-model-len: 8192\n", "")
    plan = make_plan(judged(text, model).cluster.description)
    assert plan.world_size == 1
    assert len(plan.hosts) == 1


def test_auto_without_a_model_says_what_it_needs() -> None:
    with pytest.raises(RefusedError, match=r"auto, but .* is no directory here"):
        judge(loads(replaced(SIZES, "parallel: auto\n"), Path("prod.yaml")))


def test_a_model_that_fits_nowhere_is_refused() -> None:
    text = replaced(SIZES, "parallel: auto\n")
    with pytest.raises(RefusedError) as caught:
        judged(text, "DeepSeek-V3")
    assert [problem.key for problem in caught.value.problems] == ["parallel"]


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("ray-enabled: true", "--ray-enabled"),
        ("profile-memory: true", "--profile-memory"),
        ("worker-port-min: 20000", "--worker-port-min"),
        ("task: generate", "--task"),
        ("max-modle-len: 8192", "max-model-len"),
        ("max-num-seqs: many", "many"),
    ],
)
def test_an_argument_that_does_not_exist_is_named_with_its_line(argument: str, says: str) -> None:
    text = replaced("    max-model-len: 8192", f"    {argument}")
    with pytest.raises(DescriptionError) as caught:
        judged(text)
    (problem,) = caught.value.problems
    assert caught.value.exit_code == 2
    assert problem.key == f"serve.args.{argument.split(':', maxsplit=1)[0]}"
    assert problem.line == next(n for n, x in enumerate(text.splitlines(), 1) if argument in x)
    assert says in problem.found + problem.accepted


def test_a_version_without_table_is_named_with_the_command_that_adds_it() -> None:
    text = replaced("vllm: 0.33.0", "vllm: 0.99.0")
    with pytest.raises(DescriptionError, match=r"make flags VLLM=0\.99\.0"):
        judged(text)


def test_a_combination_that_vllm_refuses_is_refused_with_its_file() -> None:
    text = replaced(
        "    max-model-len: 8192", "    max-model-len: 8192\n    enable-chunked-prefill: false"
    )
    with pytest.raises(RefusedError, match=r"vllm/.*\.py"):
        judged(text)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("gpu-memory-utilization: 0.9", "gpu-memory-utilization: .nan", "gpu-memory-utilization"),
        ("gpu-memory-utilization: 0.9", "gpu-memory-utilization: 90", "gpu-memory-utilization"),
        ("max-model-len: 8192", "max-model-len: -5", "max-model-len"),
        ("max-model-len: 8192", "uds: /x", "uds"),
        ("max-model-len: 8192", "max-model-len: 1\n    max_model_len: 2", "max_model_len"),
    ],
)
def test_what_nobody_can_mean_is_refused_at_its_own_line(old: str, new: str, key: str) -> None:
    text = replaced(old, new)
    with pytest.raises(DescriptionError) as caught:
        judged(text)
    assert f"serve.args.{key}" in {problem.key for problem in caught.value.problems}


def test_a_variable_cannot_smuggle_in_another() -> None:
    text = replaced("  args:\n", '  env: {A: "x\\nRAY_AUTH_MODE=none"}\n  args:\n')
    with pytest.raises(DescriptionError, match=r"serve\.env\.A"):
        judged(text)


def test_a_memory_that_the_named_gpu_does_not_have_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"8 GiB for A100-SXM4-80GB"):
        judged(replaced("memory: 80GiB", "memory: 8GiB"))


def on_cpus(size: int | None, model: str = "Qwen3-0.6B", extra: str = "") -> Judged:
    """The lab's description with that model, size of its KV cache and further arguments."""
    line = "    kv-cache-memory-bytes: 67108864\n"
    assert line in LAB
    text = LAB.replace(line, extra if size is None else f"{line[:-9]}{size}\n{extra}")
    return judge(loads(text.replace("../.cache/model/tiny", str(MODELS / model)), Path("lab.yaml")))


# 28 layers in two stages, 8 key-value heads of 128, keys and values in 2 bytes, 128 tokens.
BLOCK = 14 * 2 * 8 * 128 * 2 * 128


@pytest.mark.parametrize("size", [0, 1000, BLOCK, 3 * BLOCK - 1])
def test_on_cpus_a_fixed_cache_that_holds_no_request_is_refused(size: int) -> None:
    with pytest.raises(DescriptionError) as caught:
        on_cpus(size)
    assert caught.value.exit_code == 2
    (problem,) = caught.value.problems
    lines = LAB.splitlines()
    assert "kv-cache-memory-bytes" in lines[problem.line - 1]
    assert problem.key == "serve.args.kv-cache-memory-bytes"
    assert problem.found == str(size)
    assert problem.accepted.startswith(f"at least {3 * BLOCK}, since one request of 256 tokens")


def test_on_cpus_one_that_holds_a_request_is_not_weighed() -> None:
    for size in (3 * BLOCK, None):
        assert on_cpus(size).decision is None
    # Of smaller blocks it needs less: the one that stays with vLLM is smaller.
    assert on_cpus(5 * BLOCK // 2, extra="    block-size: 64\n").decision is None


@pytest.mark.parametrize("model", ["DeepSeek-V2-Lite", "nowhere"])
def test_on_cpus_what_is_not_known_is_not_refused(model: str) -> None:
    # Without AMX tiles blocks of latent attention have 16 tokens, with them 128.
    assert on_cpus(17 * 14 * 576 * 2 * 16, model).decision is None
