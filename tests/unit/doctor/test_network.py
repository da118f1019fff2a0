"""The network measured and weighed; transports that NCCL took; what answers from outside."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.doctor.cases import FIXTURES, changed, sound
from vllm_cluster.doctor import exposure, measure, need
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings, rdma
from vllm_cluster.doctor.collective import Collective, read
from vllm_cluster.doctor.collective_report import exit_code, problem
from vllm_cluster.doctor.exposure import Dialled
from vllm_cluster.doctor.finding import BY_HAND, Finding
from vllm_cluster.doctor.measure import Flow, Kept, Pair
from vllm_cluster.doctor.nccl_log import transport
from vllm_cluster.doctor.network_report import Report
from vllm_cluster.facts.doctor import HostFacts
from vllm_cluster.facts.doctor.gpu_model import RdmaPort
from vllm_cluster.facts.doctor.model import Container, Holder
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


EIGHT = ", ".join(f"mlx5_{n}:1/RoCE" for n in range(8))


@pytest.mark.parametrize(
    ("file", "kind", "direct", "words"),
    [
        ("gdrdma", "RDMA", True, "IB, GPUDirect"),
        ("gdrdma-h100", "RDMA", True, "IB, GPUDirect"),
        ("roce-2.5-no-gdr", "RDMA", False, "IB, through host memory over mlx5_0:1/RoCE"),
        ("roce-2.22", "RDMA", False, "IBext_v8 over " + EIGHT),
        ("roce-2.27", "RDMA", False, "IB over " + EIGHT),
        ("efa", "RDMA", False, "Libfabric"),
        ("efa-old", "RDMA", False, "AWS Libfabric, through host memory"),
        ("ib-fails-socket", "sockets", False, "Socket over lo"),
        ("ib-no-gdr", "RDMA", False, "IBext_v8, through host memory"),
        ("socket", "sockets", False, "Socket over eth0"),
        ("socket-broken", "sockets", False, "Socket"),
    ],
)
def test_the_transport_that_nccl_really_took(
    file: str, kind: str, *, direct: bool, words: str
) -> None:
    found = transport((FIXTURES / "nccl" / f"{file}.txt").read_text())
    assert (found.kind, found.gpu_direct, found.text()) == (kind, direct, words)


@pytest.mark.parametrize(
    "kind", ["/GDRDMA", "/GDRDMA(PCI)", "/GDRDMA/Shared", "/GDRDMA(PCI)/Shared"]
)
@pytest.mark.parametrize("device", ["0", "0(4)"])  # (4): through rank 4, which sits next to it
def test_every_form_of_gpudirect_is_known(kind: str, device: str) -> None:
    """The forms of NCCL 2.29, src/transport/net.cc, sendSetup and recvSetup."""
    log = f"a:1:2 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/{device}{kind}\n"
    assert transport(log).gpu_direct
    plain = log.replace(kind, "")
    assert not transport(log + plain).gpu_direct


def test_libfabric_over_tcp_is_no_rdma() -> None:
    log = (FIXTURES / "nccl" / "efa.txt").read_text()
    assert transport(log).kind == "RDMA"
    assert transport(log.replace("Provider is efa", "Provider is tcp")).kind == "sockets"


def test_one_channel_over_sockets_is_no_rdma() -> None:
    log = (FIXTURES / "nccl" / "gdrdma.txt").read_text()
    log += (FIXTURES / "nccl" / "socket-broken.txt").read_text()
    found = transport(log)
    assert found.kind == "sockets"
    assert any("closed by remote peer" in words for words in found.warnings)


def test_sockets_where_the_description_says_rdma_is_a_failure() -> None:
    found = transport((FIXTURES / "nccl" / "socket.txt").read_text())
    result = Collective("nccl", (), found, 1.0)
    assert problem(result, rdma=True) == "the description says RDMA, NCCL took Socket over eth0"
    assert problem(result, rdma=False) == ""
    assert problem(Collective("gloo", (), transport(""), 1.0), rdma=True) == ""


def test_the_host_that_failed_is_named_with_its_own_words() -> None:
    good = '@@result {"lines": [[1024, 0.001, 0.002]], "seconds": 2.0}\n'
    bad = "Traceback\nRuntimeError: Gloo connectFullMesh failed with timed out\n"
    found = read("gloo", [("node-a", good, ""), ("node-b", "", bad)])
    assert found.failed == "node-b"
    assert "connectFullMesh" in problem(found, rdma=False)
    whole = read("gloo", [("node-a", good, ""), ("node-b", good, "")])
    assert whole.error == ""
    assert whole.lines[0].gbit_s == pytest.approx(2 * 1024 * 8 / 1e9 / 0.002)


def test_of_hosts_that_fail_the_one_that_the_others_waited_for_is_named() -> None:
    waited = "torch.distributed.DistStoreError: Timed out after 61 seconds, 1/2 clients joined.\n"
    cause = "docker: Error response from daemon: No such image: x\n"
    found = read("nccl", [("node-a", "", waited), ("node-b", "", cause)])
    assert (found.failed, exit_code(found, problem(found, rdma=True))) == ("node-b", 1)
    both = read("nccl", [("node-a", "", waited), ("node-b", "", waited)])
    assert both.failed == "node-a"


def test_a_host_that_ssh_does_not_reach_is_no_failed_collective() -> None:
    rows = [("node-a", "", "Error: Timed out\n"), ("node-b", "", "@@silent No route to host\n")]
    found = read("gloo", rows)
    words = problem(found, rdma=False)
    assert words == "no answer of node-b: No route to host"
    assert exit_code(found, words) == 2


def test_what_answers_a_stranger_is_exposed_and_the_api_to_its_networks_is_not() -> None:
    plan = sound().plan
    answers = {
        ("node-a", 8000): Dialled(True, "10.77.0.1"),
        ("node-a", 8265): Dialled(True, "10.77.0.1", "HTTP/1.1 200 OK"),
        ("node-b", 6380): Dialled(True, "10.77.0.1"),
    }
    found = {f.host: f for f in exposure.findings(plan, answers)}
    assert set(found) == {"node-a", "node-b"}
    assert "ray dashboard (8265)" in found["node-a"].found
    assert "without a token" in found["node-a"].found
    assert "vllm api" not in found["node-a"].found


def test_the_address_that_ssh_uses_is_dialled_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        plan = sound().plan
        use = next(use for use in plan.ports if use.name == "ray gcs")
        host = replace(plan.hosts["node-a"], address="127.0.0.2", ssh="localhost")
        plan = replace(plan, hosts={"node-a": host}, ports=(replace(use, first=port, last=port),))
        found = exposure.dial_all(plan)["node-a", port]
    assert found.open
    assert found.address == "127.0.0.1"


def test_a_proxy_that_takes_every_connection_is_no_open_port() -> None:
    answers = {
        ("node-a", 47991): Dialled(True, "10.77.0.1"),
        ("node-a", 6379): Dialled(True, "10.77.0.1"),
    }
    assert list(exposure.findings(sound().plan, answers)) == []
    assert not exposure.looked(answers)
    answers[("node-a", 1)] = answers.pop(("node-a", 47991))
    assert list(exposure.findings(sound().plan, answers)) == []


def test_a_firewall_that_is_off_is_why_ports_answer() -> None:
    shut = changed(sound(), "node-a", nft="")
    answers = {("node-a", 6379): Dialled(True, "192.0.2.7")}
    rows = ordered([*findings(shut), *exposure.findings(shut.plan, answers)])
    assert [(f.id, why.id if why else None) for f, why in rows] == [
        ("security.firewall", None), ("security.exposed", "security.firewall")
    ]  # fmt: skip


def test_a_host_behind_a_proxy_command_is_not_dialled(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host node-a\n    ProxyCommand nc %h %p\n")
    assert not exposure.direct(["ssh", "-F", str(config), "node-a"])
    config.write_text("Host node-a\n    User root\n")
    assert exposure.direct(["ssh", "-F", str(config), "node-a"])


def test_a_host_of_the_cluster_may_reach_everything() -> None:
    answers = {("node-a", 6379): Dialled(True, "10.77.0.12")}
    assert list(exposure.findings(sound().plan, answers)) == []


def test_the_api_from_a_network_that_may_not_use_it() -> None:
    answers = {("node-a", 8000): Dialled(True, "192.168.9.9")}
    assert [f.id for f in exposure.findings(sound().plan, answers)] == ["security.exposed"]


def test_an_api_without_a_key_on_the_internet() -> None:
    plan = sound().plan
    head = plan.hosts["node-a"]
    allow = tuple(
        replace(rule, sources=("0.0.0.0/0",)) if plan.api_port in rule.ports else rule
        for rule in head.allow
    )
    hosts = {**plan.hosts, "node-a": replace(head, allow=allow)}
    wide = replace(plan, hosts=hosts, api_key=False)
    assert [f.id for f in exposure.keyless(wide, "x.yaml", "pyinfra x")] == ["security.keyless"]
    assert list(exposure.keyless(replace(wide, api_key=True), "x.yaml", "")) == []
    edit, deploy = next(exposure.keyless(wide, "x.yaml", "pyinfra x")).fix
    assert (edit.on, deploy.command) == (BY_HAND, "pyinfra x")
    assert edit.command == "In x.yaml, secrets.api_key: generate in place of none"


STRANGER = {("node-a", 6379): Dialled(True, "192.0.2.7", address="10.77.0.11")}


def exposed(**changes: Any) -> Finding:
    """What is said of node-a with these facts, whose GCS answers a stranger."""
    case = changed(sound(), "node-a", **changes)
    return next(exposure.findings(case.plan, STRANGER, case))


def ufw_holds(*rules: str, default: str = "deny") -> Finding:
    """The same where ufw holds the firewall."""
    state = ("Status: active", f"Default: {default} (incoming), allow (outgoing)")
    return exposed(nft="", holder=Holder("ufw", state, rules))


def test_the_fix_of_an_open_port_is_that_of_whatever_holds_the_firewall() -> None:
    assert exposed(nft="").fix[0].command == "systemctl restart vllm-cluster-firewall.service"
    found = ufw_holds("ufw allow 22/tcp", "ufw allow 6379/tcp comment 'mine'")
    assert found.fix[0].command == "ufw delete allow from any to any port 6379 proto tcp"
    assert found.evidence.endswith("; ufw allow 6379/tcp comment 'mine'")
    assert ufw_holds(default="allow").fix[0].command == "ufw default deny incoming"
    by_hand = ufw_holds("ufw allow 6000:7000/tcp")
    assert by_hand.fix[0].on == BY_HAND
    assert "ufw status numbered" in by_hand.fix[0].command
    zone = exposed(nft="", holder=Holder("firewalld"))
    assert "firewall-cmd --list-all-zones" in zone.fix[0].command


def test_a_rule_that_somebody_put_into_our_table_is_named_and_goes_with_a_restart() -> None:
    nft = sound().facts["node-a"].nft
    chain = next(line for line in nft.splitlines() if "type filter hook input" in line)
    assert exposed().fix[0].on == BY_HAND
    found = exposed(nft=nft.replace(chain, f"{chain}\n\t\ttcp dport 6379 accept # handle 99"))
    assert "chain input: tcp dport 6379 accept" in found.evidence
    assert found.fix[0].command == "systemctl restart vllm-cluster-firewall.service"


def test_a_published_port_goes_with_its_container_and_a_host_unseen_is_mended_by_hand() -> None:
    docker = sound().facts["node-a"].docker
    web = Container("web", running=True, published=("0.0.0.0:6379",))
    found = exposed(docker=replace(docker, containers={"web": web}))
    assert found.fix[0].command == "docker stop web"
    assert next(exposure.findings(sound().plan, STRANGER)).fix[0].on == BY_HAND


def test_behind_a_nat_the_api_that_answers_may_well_be_permitted() -> None:
    plan = sound().plan
    answer = Dialled(True, "192.168.9.9", address="8.8.8.8")
    found = list(exposure.findings(plan, {("node-a", 8000): answer}))
    assert [(f.id, f.severity) for f in found] == [("security.exposed", "warning")]
    found = list(exposure.findings(plan, {("node-a", 8000): answer, ("node-a", 6379): answer}))
    assert [f.severity for f in found] == ["failing"]
    assert "vllm api" not in found[0].found


def test_ssh_is_dialled_at_the_descriptions_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host = replace(sound().plan.hosts["node-a"], address="127.0.0.1", ssh="127.0.0.1")
        answers = exposure.dial_all(replace(sound().plan, hosts={"node-a": host}, ports=()), port)
    assert answers["node-a", port].open
    assert exposure.looked(answers)
