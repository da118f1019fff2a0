"""The network between hosts measured, weighed and kept."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.unit.doctor.cases import sound
from vllm_cluster.doctor import measure, need
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import rdma
from vllm_cluster.doctor.measure import Flow, Kept, Pair
from vllm_cluster.doctor.network_report import Report
from vllm_cluster.facts.doctor import HostFacts
from vllm_cluster.facts.doctor.gpu_model import RdmaPort
from vllm_cluster.facts.doctor.script import rdma_script
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan import make_plan
from vllm_cluster.spec import load

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
PING = """PING 10.77.0.12 (10.77.0.12) 56(84) bytes of data.

--- 10.77.0.12 ping statistics ---
50 packets transmitted, 50 received, 0% packet loss, time 1029ms
rtt min/avg/max/mdev = 0.040/0.110/0.209/0.031 ms
"""


def iperf(bits_per_second: float, retransmits: int = 0) -> str:
    """The parts of iperf3's JSON that are read (3.12)."""
    end = {"sum_sent": {"bits_per_second": 1.0, "retransmits": retransmits},
           "sum_received": {"bits_per_second": bits_per_second}}  # fmt: skip
    return json.dumps({"start": {}, "intervals": [], "end": end})


def output(rate: float = 9.4e9) -> str:
    """What the client's script prints."""
    return (
        "@@route\n10.77.0.12 dev fabric0 src 10.77.0.11 uid 0 \\    cache\n@@card\n1500\n"
        f"@@ping\n{PING}@@mtu\n1500\n@@one-there\n{iperf(rate, 3)}\n@@one-back\n{iperf(rate / 2)}\n"
        f"@@many-there\n{iperf(2 * rate)}\n@@many-back\n{iperf(2 * rate)}\n"
    )


BACK = "@@route\n10.77.0.11 via 10.77.0.1 dev wan0 src 10.77.0.12 uid 0 \\    cache\n@@card\n1500\n"


def test_a_measurement_is_read_back() -> None:
    pair = measure.read("node-a", "node-b", output(), back=BACK)
    assert (pair.rtt_ms, pair.jitter_ms, pair.loss, pair.mtu) == (0.110, 0.031, 0.0, 1500)
    assert pair.there == Flow(9.4, 18.8, 3)
    assert pair.gbit_s == pytest.approx(4.7)
    assert pair.route == "10.77.0.12 dev fabric0 src 10.77.0.11"
    assert pair.route_back == "10.77.0.11 via 10.77.0.1 dev wan0 src 10.77.0.12"
    text = Report([pair], []).text()
    assert "node-a > node-b: 10.77.0.12 dev fabric0 src 10.77.0.11 (MTU 1500)" in text
    assert "node-b > node-a: 10.77.0.11 via 10.77.0.1 dev wan0 src 10.77.0.12 (MTU 1500)" in text


def with_mtu(path: int, card: int, back: int, rate: float = 9.4e9) -> Pair:
    """A pair whose path and cards carry that much."""
    text = output(rate).replace("@@mtu\n1500", f"@@mtu\n{path}")
    there = text.replace("@@card\n1500", f"@@card\n{card}")
    return measure.read("a", "b", there, back=BACK.replace("@@card\n1500", f"@@card\n{back}"))


def test_a_path_that_carries_less_than_the_cards_send_is_a_failure_with_its_fix() -> None:
    report = Report([with_mtu(1500, 9000, 9000)], [])
    assert report.exit_code == 1
    words = report.problems()[0]
    assert "the cards send 9000 bytes, the path carries 1500" in words
    assert "on a: ip link set dev fabric0 mtu 1500; on b: ip link set dev wan0 mtu 1500" in words
    for sound_one in (with_mtu(9000, 9000, 9000), with_mtu(8997, 9000, 9000)):
        assert Report([sound_one], []).exit_code == 0


def test_of_cards_that_differ_the_smaller_one_is_mended() -> None:
    words = Report([with_mtu(1500, 9000, 1500)], []).problems()[0]
    assert words.endswith("; on b: ip link set dev wan0 mtu 9000")


def test_the_path_is_judged_where_nothing_large_came_through_and_not_where_nothing_did() -> None:
    pair = replace(with_mtu(1500, 9000, 9000), error="iperf3: timed out", there=None, back=None)
    assert Report([pair], []).exit_code == 1
    assert any("the path carries 1500" in words for words in Report([pair], []).problems())
    assert Report([replace(pair, rtt_ms=0.0, mtu=1200)], []).exit_code == 2


def test_rdma_ports_are_in_the_table_and_a_described_one_that_is_down_is_a_failure() -> None:
    up = RdmaPort("mlx5_0/ports/1", "ACTIVE", "LinkUp", 200.0, "InfiniBand", {"symbol_error": 7})
    down = replace(up, state="DOWN", physical="Polling", errors={})
    pair = measure.read("node-a", "node-b", output())
    case = sound()
    environment = {**case.plan.environment, "NCCL_IB_HCA": "=mlx5_0"}
    plan = replace(case.plan, environment=environment)
    for port, code, said in ((up, 0, "symbol_error 7"), (down, 1, "DOWN Polling")):
        ports = {"node-a": (port,), "node-b": (port,)}
        facts = {name: HostFacts(name, rdma=found) for name, found in ports.items()}
        wrong = (*rdma.ports(Case(plan, facts)), *rdma.errors(Case(plan, facts)))
        report = Report([pair], [], Kept(), ports, wrong)
        assert report.exit_code == code
        lines = [line for line in report.text().splitlines() if line.startswith("RDMA node-b")]
        assert len(lines) == 1
        assert said in lines[0]
        assert report.to_json()["rdma"]["node-b"][0]["name"] == "mlx5_0/ports/1"


def test_the_part_of_the_script_that_reads_rdma_ports_runs_alone() -> None:
    done = subprocess.run(["bash"], input=rdma_script(), capture_output=True, text=True, check=True)
    assert Sections(done.stdout).named("infiniband")


def test_a_measurement_that_failed_says_so() -> None:
    text = output().replace(iperf(9.4e9, 3), '{"error": "unable to connect to server"}')
    assert "unable to connect" in measure.read("a", "b", text).error


def test_of_70_billion_parameters_stages_need_little_and_sums_across_hosts_far_too_much() -> None:
    plan = make_plan(load(PROD).description)
    pipeline, tensor = need.needs(plan, LLAMA_70B, {"max-num-seqs": 256})
    assert pipeline.planned
    assert pipeline.bytes_per_token == 2 * 8192 * 2
    good, words = pipeline.verdict(25.0, 0.0001)
    assert good
    assert words == "PP=2: needs 1.3 of 25.0 Gbit/s, good"
    assert not tensor.planned
    good, words = tensor.verdict(25.0, 0.0001)
    assert not good
    assert "times too slow" in words


def test_a_link_that_is_fast_but_far_is_too_slow_for_sums() -> None:
    plan = make_plan(load(PROD).description)
    _, tensor = need.needs(plan, LLAMA_70B, {"max-num-seqs": 1})
    good, words = tensor.verdict(400.0, 0.002)
    assert not good
    assert "times too long" in words


def test_one_host_needs_nothing_of_a_network() -> None:
    plan = sound().plan
    one = replace(plan, hosts={"node-a": plan.hosts["node-a"]})
    assert need.needs(one, LLAMA_70B, {}) == []


def test_a_measurement_is_kept_and_compared_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.json"
    assert measure.last_time(path) == Kept()
    measure.save(path, [measure.read("node-a", "node-b", output())], Kept())
    before = measure.last_time(path)
    assert before.time_s > 0
    slower = measure.read("node-a", "node-b", output(1e9))
    report = Report([slower], [], before)
    assert report.exit_code == 1
    assert "slower than last time: 0.50 Gbit/s, last time 4.70" in report.text()
    same = Report([measure.read("node-a", "node-b", output())], [], before)
    assert same.exit_code == 0


def test_a_link_that_stays_slow_is_told_of_each_time(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    slower = measure.read("node-a", "node-b", output(1e9))
    for pair in (measure.read("node-a", "node-b", output()), slower, slower):
        measure.save(path, [pair], measure.last_time(path))
    report = Report([slower], [], measure.last_time(path))
    assert report.exit_code == 1
    assert "slower than at its best: 0.50 Gbit/s, at its best 4.70" in report.text()


def test_what_versions_kept_that_knew_no_best_is_the_best(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    row = asdict(measure.read("node-a", "node-b", output()))
    old = {name: value for name, value in row.items() if "card" not in name and "_back" not in name}
    path.write_text(json.dumps({"time_s": 1.0, "pairs": [old]}))
    assert measure.last_time(path).best["node-a", "node-b"].gbit_s == pytest.approx(4.7)


def test_loss_and_jitter_are_told() -> None:
    pair = Pair("a", "b", rtt_ms=1, jitter_ms=5, loss=0.04, there=Flow(1, 1, 0), back=Flow(1, 1, 0))
    assert len(Report([pair], []).problems()) == 2


def test_a_link_that_carries_no_data_is_a_failure_and_no_crash() -> None:
    need_ = need.Need("PP=2", 32768, 1, 256, planned=True)
    pair = Pair("a", "b", rtt_ms=1, there=Flow(0, 0, 9), back=Flow(1, 1, 0))
    report = Report([pair], [need_])
    assert report.exit_code == 1
    assert "no data came through" in report.text()


def test_what_the_plan_needs_is_not_claimed_where_it_is_not_known() -> None:
    pair = Pair("a", "b", rtt_ms=1, there=Flow(1, 1, 0), back=Flow(1, 1, 0))
    report = Report([pair], [])
    assert report.exit_code == 0
    assert "is not known" in report.text()
    alone = Report([], [])
    assert alone.exit_code == 0
    assert "One host alone" in alone.text()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"time_s": 1, "pairs": [{"new": 1}]}'])
def test_a_kept_measurement_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text)
    assert measure.last_time(path) == Kept()


def test_nothing_measured_is_no_verdict() -> None:
    assert Report([Pair("a", "b", error="iperf3 is not on b")], []).exit_code == 2
