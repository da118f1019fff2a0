"""The tables and the check agree with the real parsers of vLLM 0.32.0 and Ray 2.60.0."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.lab.image import ask
from vllm_cluster.plan import make_plan
from vllm_cluster.plan.flags import Flag, FlagTable, Kind, table
from vllm_cluster.spec import load

pytestmark = pytest.mark.timeout(1300)
INVENTORIES = Path(__file__).parents[2] / "inventories"
VLLM = table("vllm", "0.32.0")
RAY = table("ray", "2.60.0")
# Where this project says no on purpose and the parsers yes: see docs/flags.md.
STRICTER = {Kind.ABBREVIATION, Kind.DOES_NOT_SERVE, Kind.NOT_READ}
HAND_WRITTEN = [
    "m -tp 2 -pp=2 --max_model_len 8k --gpu_memory_utilization=0.9",
    "m --compilation-config.mode=2 --compilation_config.backend eager",
    "m -cc.pass_config.fuse_norm_quant true -cc.custom_ops+ none,+rms_norm",
    "m -cc.moode=2",
    "m -cc.mode",
    "m --ray-enabled",
    "m --profile-memory",
    "m --worker-port-min 20000",
    "m --task generate",
    "m --disable-log-requests",
    "m --no-enable-log-requests",
    "m --worker-use-ray",
    "m --engine-use-ray",
    "m --swap-space 4",
    "m -O3",
    "m -O 3",
    "m -O=2",
    "m -O",
    "m -n2 -r 1",
    "m -tp2",
    "m extra",
    "m --enforce-eager true",
    "m --max-model-len auto --max-num-batched-tokens 16K",
    "m --max-model-len 1.5K",
    'm --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}',
    'm --kv-transfer-config {"kv_conector":"NixlConnector"}',
    'm --speculative-config {"method":"ngram","num_speculative_tokens":2}',
    "m --moe-backend Flashinfer-Cutlass",
    "m --lora-modules a=/b c",
    "m --served-model-name a b --api-key k1 k2 --middleware x --middleware y",
    "m --hf-token --hf-token x",
    "m --seed -3",
    "m --seed -3.5",
    "m --tensor-parallel-size.x 1",
    "--served-model-name a",
    "-tp 2 m",
    "m --max-log-len None --tool-call-parser None",
    "m --allowed-origins [*]",
    'm --allowed-origins ["*"]',
    "m --device-ids 0,1",
    "m --distributed-executor-backend bogus",
]


def values_for(flag: Flag, chance: random.Random) -> str:
    """A value that may or may not be right."""
    plausible = {
        "int": ["1", "16", "1_0", "x", "2.0", "-1"],
        "float": ["0.5", "1", "x", "1e-3", "-1"],
        "human_int": ["4k", "4K", "1.5k", "1.5K", "12", "k", "8kb"],
        "human_int_or_auto": ["auto", "-1", "4k", "AUTO", "1.5K", "none"],
        "json": ["{}", "[1]", "{", "null", "x"],
        "json_or_str": ["{}", "{", "x", '{"a":1}'],
        "lora": ["a=b", '{"name":"a","path":"b"}', "x", "{}"],
        "comma_list": ["0,1", "x"],
        "folded": ["auto", "AUTO", "x-y"],
        "config": ["3", "x", "[]", '{"no_such_key":1}'],
        "str": ["x", "", "None", "a b", "-x", "-a b", "auto"],
        "bool": ["true", "No", "1", "x"],
    }[flag.type.rstrip("?") or "str"]
    if flag.type == "bool":  # some releases of click take no value at all for false
        return chance.choice(plausible)
    choices = [str(each) for each in flag.choices if each != "cuda"]  # no GPU in the image
    return chance.choice(plausible + choices * 2 + ["None", ""])


def random_lines(known: FlagTable, first: list[str], count: int, seed: int) -> list[list[str]]:
    """Command lines of one to three arguments, each with a chance to be wrong."""
    chance = random.Random(seed)  # noqa: S311 - the same lines in every run
    flags = [flag for flag in known.flags if not flag.exits and flag.dest != "model"]
    lines = []
    for number in range(count):
        line = list(first)
        wanted = [flags[number % len(flags)], *chance.sample(flags, chance.randint(0, 2))]
        for flag in {each.dest: each for each in wanted}.values():
            name = chance.choice([*flag.names, *flag.off])
            if known.tool == "vllm" and chance.random() < 0.3 and name.startswith("--"):
                name = "--" + name[2:].replace("-", "_")
            if chance.random() < 0.05:
                name = name.replace("a", "e", 1)
            value = values_for(flag, chance)
            if flag.takes == "none":
                line += [name] if chance.random() < 0.9 else [f"{name}={value}"]
            else:
                line += chance.choice([[name, value], [name, value], [f"{name}={value}"], [name]])
        lines.append(line)
    return lines


VLLM_LINES = [line.split() for line in HAND_WRITTEN] + random_lines(VLLM, ["m"], 2000, 1)
RAY_LINES = [
    ["--head", "--port", "6379", "--block"],
    ["--worker-port-min", "1"],
    ["--gcs-server-port=1"],
    ["head"],
    ["-vv"],
    *random_lines(RAY, [], 1000, 2),
]


def emitted(unit: str) -> list[list[str]]:
    """The arguments of every container of `unit` in the plans of the examples."""
    plans = [make_plan(load(file).description) for file in sorted(INVENTORIES.glob("*.yaml"))]
    hosts = [host for plan in plans for host in plan.hosts.values()]
    # Behind the program's own words: `/opt/…/serve` of vLLM, `start` of Ray.
    return [list(host.containers[unit].command[1:]) for host in hosts if unit in host.containers]


EMITTED_VLLM = emitted("vllm")
EMITTED_RAY = emitted("ray-head") + emitted("ray-worker")


@pytest.fixture(scope="module")
def vllm() -> Any:
    return ask("parse_vllm", VLLM_LINES + EMITTED_VLLM)


@pytest.fixture(scope="module")
def ray() -> Any:
    return ask("parse_ray", RAY_LINES + EMITTED_RAY)


def test_every_argument_that_the_examples_emit_is_taken(vllm: Any, ray: Any) -> None:
    assert len(EMITTED_VLLM) >= 2
    assert len(EMITTED_RAY) >= 4
    assert vllm["verdicts"][len(VLLM_LINES) :] == [None] * len(EMITTED_VLLM)
    assert ray["verdicts"][len(RAY_LINES) :] == [None] * len(EMITTED_RAY)


def test_the_table_of_vllm_is_that_of_the_real_parser(vllm: Any) -> None:
    real = {row["names"][0]: row for row in vllm["arguments"]}
    # The one argument whose choices name the kind of device, here a processor.
    real["--mm-processor-device"]["choices"] += ["cuda"]
    ours = {flag.names[0]: flag for flag in VLLM.flags}
    assert real.keys() == ours.keys()
    for name, row in real.items():
        assert Flag.from_row(row) == ours[name], name


def test_the_table_of_ray_is_that_of_the_real_command(ray: Any) -> None:
    real = {row["names"][0]: row for row in ray["arguments"]}
    for host in ("--dashboard-host",):  # the address of this machine's loopback
        real[host].pop("default", None)
    ours = {flag.names[0]: flag for flag in RAY.flags if flag.names != ("--help",)}
    assert real.keys() == ours.keys()
    for name, row in real.items():
        assert Flag.from_row(row) == ours[name], name


def test_vllm_takes_what_the_check_takes_and_refuses_what_it_refuses(vllm: Any) -> None:
    differ = []
    for line, said in zip(VLLM_LINES, vllm["verdicts"], strict=False):
        problems = VLLM.check(line)
        if any(each.kind in STRICTER for each in problems):
            continue
        if (problems == []) != (said is None):
            differ.append((line, said, problems))
    assert differ == []


def test_both_answers_occur_often_enough_to_mean_something(vllm: Any, ray: Any) -> None:
    for answer in (vllm, ray):
        taken = sum(said is None for said in answer["verdicts"])
        assert 0.2 < taken / len(answer["verdicts"]) < 0.8


def test_ray_takes_what_the_check_takes_and_refuses_what_it_refuses(ray: Any) -> None:
    differ = []
    for line, said in zip(RAY_LINES, ray["verdicts"], strict=False):
        problems = RAY.check(line)
        # Stricter on purpose: an option is never the value of the one before it.
        if any(p.kind is Kind.MISSING_VALUE and p.index + 1 < len(line) for p in problems):
            continue
        if (problems == []) != (said is None):
            differ.append((line, said, problems))
    assert differ == []
