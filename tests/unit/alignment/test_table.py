"""The alignment table: which cell is red, who is the odd one out, what the words say."""

from __future__ import annotations

import json

import pytest

from vllm_cluster.plan.alignment import Expected, Observed, Table, align
from vllm_cluster.plan.alignment_text import to_json, to_lines

IMAGE = "sha256:" + "a" * 64
MANIFEST = "b" * 64
GOOD = {
    "os": "Ubuntu 22.04.5 LTS", "kernel": "5.15.0-122-generic", "docker": "27.3.1",
    "driver_loaded": "570.124.06", "driver_installed": "570.124.06", "cuda": "12.8",
    "toolkit": "1.17.8", "image": IMAGE, "python": "3.12.3", "ray": "2.56.1",
    "vllm": "0.33.0+cu129", "torch": "2.9.0", "gpu_model": "NVIDIA A100-SXM4-80GB",
    "gpu_memory": "81920 MiB", "gpu_count": "4", "mtu": "9000", "manifest": MANIFEST,
}  # fmt: skip
HOSTS = ("node-a", "node-b", "node-c")
EXPECTED = Expected(
    head="node-a", gpus=dict.fromkeys(HOSTS, 4), nvidia=True, image=IMAGE, vllm="0.33.0",
    ray="2.56.1", manifest=MANIFEST, gpu_model="A100-SXM4-80GB",
)  # fmt: skip


def table(**of_b: str) -> Table:
    """Three hosts, of which node-b has other values."""
    values: dict[str, Observed | None] = {name: Observed(GOOD) for name in HOSTS}
    values["node-b"] = Observed({**GOOD, **of_b})
    return align(values, EXPECTED)


def test_equal_hosts_share_one_column_and_have_no_problem() -> None:
    same = table()
    assert same.problems == ()
    assert to_lines(same)[0].split() == ["host", "node-a,", "node-b,", "node-c"]


# key, value of node-b, row, words of the problem, words of the fix
ODD = [
    ("driver_loaded", "570.133.07", "driver loaded", "570.133.07, not 570.124.06", "reboot"),
    ("cuda", "12.6", "CUDA of the driver", "12.6, not 12.8", "driver version"),
    ("toolkit", "", "container toolkit", "none, not 1.17.8", "deploys/gpu.py"),
    ("image", "sha256:" + "c" * 64, "image", "cccccccccccc, not aaaaaaaaaaaa", "cluster.py"),
    ("image", "", "image", "none, not aaaaaaaaaaaa", "cluster.py"),
    ("python", "3.12.4", "Python in the image", "3.12.4, not 3.12.3", "Pin the image"),
    ("ray", "2.55.0", "Ray in the image", "2.55.0, not 2.56.1", "Pin the image"),
    ("vllm", "0.32.0", "vLLM in the image", "0.32.0, not 0.33.0", "Pin the image"),
    ("gpu_model", "NVIDIA A100-PCIE-40GB", "GPU", "PCIE-40GB, not A100-SXM4-80GB", "equal GPUs"),
    ("gpu_memory", "40960 MiB", "GPU memory", "40960 MiB, not 81920 MiB", "smallest GPU"),
    ("gpu_count", "3", "GPUs", "3, not 4", "fell off the bus"),
    ("mtu", "1500", "MTU on the fabric", "1500, not 9000", "one MTU on all hosts"),
    ("manifest", "d" * 64, "weights", "dddddddddddd, not bbbbbbbbbbbb", "places the weights"),
    ("manifest", "", "weights", "none, not bbbbbbbbbbbb", "places the weights"),
]


@pytest.mark.parametrize(("key", "value", "row", "found", "fix"), ODD)
def test_the_odd_one_is_red_named_and_told_what_to_do(
    key: str, value: str, row: str, found: str, fix: str
) -> None:
    odd = table(**{key: value})
    red = {
        (title, host)
        for title, cells in odd.rows.items()
        for host, cell in cells.items()
        if cell.state == "red"
    }
    assert (row, "node-b") in red
    assert {host for _, host in red} == {"node-b"}
    words = next(p.text() for p in odd.problems if p.title == row)
    assert f"{row}: node-b has" in words
    assert found in words
    assert fix in words
    assert any("!" in line and line.startswith(row) for line in to_lines(odd))


def test_a_red_cell_stands_in_a_column_of_its_own() -> None:
    assert to_lines(table(mtu="1500"))[0].split() == ["host", "node-a,", "node-c", "node-b"]


@pytest.mark.parametrize("key", ["kernel", "os", "docker", "torch"])
def test_what_may_differ_is_shown_and_stops_nothing(key: str) -> None:
    noted = table(**{key: "another"})
    assert noted.problems == ()
    assert any(" ~ " in line and "~another" in line for line in to_lines(noted))


def test_a_driver_upgraded_beneath_the_loaded_one_asks_for_a_reboot_of_that_host() -> None:
    words = [p.text() for p in table(driver_installed="570.133.07").problems]
    assert any("not the loaded 570.124.06. Reboot node-b" in text for text in words)


def test_of_two_hosts_that_differ_the_head_is_the_measure() -> None:
    values = {"node-a": Observed(GOOD), "node-b": Observed({**GOOD, "mtu": "1500"})}
    (problem,) = align(values, EXPECTED).problems
    assert (problem.hosts, problem.found, problem.wanted) == (("node-b",), "1500", "9000")


def test_of_three_hosts_the_majority_is_the_measure_though_the_head_differs() -> None:
    values = {name: Observed(GOOD) for name in HOSTS} | {
        "node-a": Observed({**GOOD, "mtu": "1500"})
    }
    (problem,) = align(values, EXPECTED).problems
    assert problem.hosts == ("node-a",)


def test_equal_hosts_that_all_miss_what_is_declared_are_all_red() -> None:
    values = {name: Observed({**GOOD, "vllm": "0.32.0"}) for name in HOSTS}
    (problem,) = align(values, EXPECTED).problems
    assert problem.hosts == HOSTS


def test_more_gpus_than_declared_are_no_problem() -> None:
    assert table(gpu_count="8").problems == ()


def test_a_host_without_an_answer_stops_the_run() -> None:
    silent = align({"node-a": Observed(GOOD), "node-b": None}, EXPECTED)
    assert [p.hosts for p in silent.problems] == [("node-b",)]
    assert any(line.startswith("answer") and "!none" in line for line in to_lines(silent))


def test_hosts_without_gpus_have_no_rows_about_gpus() -> None:
    cpu = {k: v for k, v in GOOD.items() if not k.startswith(("gpu", "driver", "cuda", "toolkit"))}
    expected = Expected(
        head="node-a", gpus={"node-a": 1}, nvidia=False, image=IMAGE, vllm="0.33.0", ray="2.56.1",
        manifest=MANIFEST,
    )  # fmt: skip
    found = align({"node-a": Observed(cpu)}, expected)
    assert found.problems == ()
    assert not {"GPU", "GPUs", "driver loaded", "container toolkit"} & set(found.rows)


# The offsets of three hosts to this machine's clock; who is late.
CLOCKS = [
    ((0.0, 0.1, 0.2), ()),
    ((0.0, 75.0, 0.1), ("node-b",)),
    ((500.0, 500.1, 500.2), ()),  # this machine's own clock is the wrong one
    ((500.0, 500.1, 0.0), ("node-c",)),
    ((0.0, 75.0), ("node-b",)),  # one against one: this machine decides
    ((75.0, 0.0), ("node-a",)),
]


@pytest.mark.parametrize(("offsets_s", "late"), CLOCKS)
def test_the_clock_that_differs_from_the_others_is_red(
    offsets_s: tuple[float, ...], late: tuple[str, ...]
) -> None:
    values = {
        name: Observed(GOOD, (offset - 0.01, offset + 0.01))
        for name, offset in zip(HOSTS, offsets_s, strict=False)
    }
    found = align(values, EXPECTED)
    red = tuple(name for name, cell in found.rows["clock"].items() if cell.state == "red")
    assert red == late


def test_a_slow_link_does_not_make_a_clock_wrong() -> None:
    wide = Observed(GOOD, (-4.0, 4.0))
    values = {"node-a": wide, "node-b": Observed(GOOD, (1.5, 9.0)), "node-c": wide}
    assert align(values, EXPECTED).problems == ()


def test_the_json_names_hosts_states_and_fixes() -> None:
    told = json.loads(json.dumps(to_json(table(mtu="1500"))))
    assert told["hosts"]["node-b"]["MTU on the fabric"] == {"text": "1500", "state": "red"}
    assert told["hosts"]["node-a"]["MTU on the fabric"] == {"text": "9000", "state": "good"}
    (problem,) = told["problems"]
    assert problem["hosts"] == ["node-b"]
    assert set(problem) == {"check", "hosts", "found", "wanted", "fix"}


def test_sixty_four_equal_hosts_take_one_column() -> None:
    names = [f"n{number}" for number in range(64)]
    expected = Expected(
        head="n0", gpus=dict.fromkeys(names, 4), nvidia=True, image=IMAGE, vllm="0.33.0",
        ray="2.56.1", manifest=MANIFEST,
    )  # fmt: skip
    lines = to_lines(align({name: Observed(GOOD) for name in names}, expected))
    assert lines[0].endswith("n0 … n63 (64 hosts)")
    assert max(map(len, lines)) < 80
