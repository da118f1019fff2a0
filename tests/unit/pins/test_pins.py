"""What a lock holds, and how something else is told from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vllm_cluster.commands import lock as command
from vllm_cluster.control import lock, pinned
from vllm_cluster.control.context import Context
from vllm_cluster.doctor.reach import Reply
from vllm_cluster.facts import pins as fact
from vllm_cluster.plan import make_plan, paths
from vllm_cluster.plan.alignment import Expected, Observed, align
from vllm_cluster.plan.pins import (
    HostPins,
    Pins,
    changes,
    declared_drift,
    host_drift,
    lacking,
    with_drift,
)
from vllm_cluster.plan.weights import ModelId
from vllm_cluster.spec import Cluster, DescriptionError, RefusedError, load
from vllm_cluster.weights.manifest import FileEntry, make_manifest

INVENTORIES = Path(__file__).parents[3] / "inventories"
HOST = HostPins("Debian GNU/Linux 12", "6.1.0-28-amd64", {"docker.io": "20.10.24", "rsync": "3.2"})
PINS = Pins("lab", {"identity": "aa", "name": "tiny"}, {"reference": "r"}, {"node-b": HOST})


def test_a_lock_comes_back_as_it_was_written() -> None:
    assert Pins.from_data(PINS.to_data()) == PINS


@pytest.mark.parametrize("data", [[], "x", {"hosts": []}, {"hosts": {"a": 1}}, {"model": 3}])
def test_what_is_no_lock_is_not_read_as_one(data: object) -> None:
    with pytest.raises(ValueError, match="not the mapping"):
        Pins.from_data(data)


def test_packages_that_a_host_has_besides_are_no_drift() -> None:
    found = replace(HOST, packages={**HOST.packages, "nfs-common": "1"})
    assert list(host_drift(HOST, found)) == []


def test_every_drift_of_a_host_is_told() -> None:
    found = HostPins("Debian GNU/Linux 13", "6.12", {"docker.io": "26.1"})
    assert [drift.text() for drift in host_drift(HOST, found)] == [
        "system: locked Debian GNU/Linux 12, found Debian GNU/Linux 13",
        "kernel: locked 6.1.0-28-amd64, found 6.12",
        "package docker.io: locked 20.10.24, found 26.1",
        "package rsync: locked 3.2, found nothing",
    ]


def test_what_cannot_be_known_here_is_not_held_against_the_description() -> None:
    locked = replace(PINS, image={"reference": "r", "id": "sha256:1"})
    assert declared_drift(locked, PINS) == []
    other = replace(PINS, model={"identity": "bb", "name": "tiny"})
    assert [drift.key for drift in declared_drift(locked, other)] == ["model.identity"]


def test_changes_are_told_a_line_each() -> None:
    after = replace(PINS, hosts={"node-b": replace(HOST, kernel="6.1.0-30-amd64")})
    assert changes(PINS, after) == [
        "hosts.node-b.kernel: 6.1.0-28-amd64, now 6.1.0-30-amd64",
    ]
    assert changes(PINS, PINS) == []


def test_a_drifted_host_is_a_red_cell_that_stops_the_run() -> None:
    values = {"os": HOST.os, "kernel": HOST.kernel, "package docker.io": "26.1",
              "package rsync": "3.2"}  # fmt: skip
    observed = {"node-a": Observed(values), "node-b": Observed(values)}
    expected = Expected("node-a", {"node-a": 1, "node-b": 1}, False, "", "", "", "")
    table = align(observed, expected)
    held = with_drift(table, observed, {"node-b": HOST})
    new = [problem for problem in held.problems if problem not in table.problems]
    assert [(p.hosts, p.title, p.found) for p in new] == [
        (("node-b",), "package docker.io", "26.1")
    ]
    assert "vllm-cluster lock" in new[0].fix
    row = held.rows["package docker.io, locked"]
    assert {name: cell.state for name, cell in row.items()} == {"node-b": "red"}
    assert with_drift(table, observed, {}) == table


def test_the_script_says_what_this_machine_has() -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("the hosts are Debian or Ubuntu; this is another system")
    text = fact.script("none").replace("nftables", "dpkg")
    done = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=True)
    found = fact.parse(done.stdout.splitlines())
    kernel = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout
    assert found["kernel"] == kernel.strip()
    version = ["dpkg-query", "--show", "--showformat=${Version}", "dpkg"]
    shown = subprocess.run(version, capture_output=True, text=True, check=True).stdout
    assert found["package dpkg"] == shown


def test_the_script_says_what_docker_and_a_deploy_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "generation"
    text = fact.script("vllm:1").replace(f"{paths.SCRIPTS}/generation", str(tool))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    programs = {
        "docker": "#!/bin/sh\n[ $1 = version ] && echo 20.10 || echo sha256:1\n",
        "generation": f"#!/bin/sh\necho '{SERVING}'\n",
    }
    (tmp_path / "docker").write_text("#!/bin/sh\necho; exit 1\n")  # no daemon
    (tmp_path / "docker").chmod(0o755)
    assert lacking({"node-a": _said(text)}, "vllm:1") == {
        "node-a": ["Docker does not answer", "the image is not there", NEVER]
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(body)
        (tmp_path / name).chmod(0o755)
    assert lacking({"node-a": _said(text)}, "vllm:1") == {}
    tool.write_text("#!/bin/sh\nprintf 'Traceback\\nValueError: no JSON\\n' >&2; exit 1\n")
    assert lacking({"node-a": _said(text)}, "vllm:1") == {
        "node-a": ["its generations cannot be read (ValueError: no JSON)"]
    }


def _said(script: str) -> dict[str, str]:
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, check=True)
    return fact.parse(done.stdout.splitlines())


@pytest.fixture
def known(tmp_path: Path) -> Context:
    """A context without secrets, of the lab's description."""
    shutil.copy(INVENTORIES / "lab.yaml", tmp_path / "lab.yaml")
    cluster: Cluster = load(tmp_path / "lab.yaml")
    manifest = make_manifest(
        "tiny", "local", 2**20, [FileEntry("config.json", 2, "0" * 64, ("0" * 64,))]
    )
    plan = make_plan(
        cluster.description, image_id="sha256:1", model_id=ModelId("local", manifest.identity, 2)
    )
    return Context(cluster, plan, tmp_path / "image.tar", tmp_path, manifest, {})


def test_a_run_without_a_lock_is_free(known: Context) -> None:
    assert pinned.enforce(known) is None


def test_a_run_under_its_lock_goes_on(known: Context) -> None:
    assert pinned.write(known.cluster, pinned.declared(known))
    assert not pinned.write(known.cluster, pinned.declared(known))
    assert pinned.enforce(known) == pinned.declared(known)


def test_another_image_or_model_is_refused_with_key_and_fix(known: Context) -> None:
    declared = pinned.declared(known)
    pinned.write(known.cluster, replace(declared, image={**declared.image, "id": "sha256:2"}))
    with pytest.raises(RefusedError) as refused:
        pinned.enforce(known)
    text = refused.value.text()
    assert "lab.lock.json: image.id: found sha256:1, but sha256:2 is locked" in text
    assert "make lock" in text
    assert refused.value.exit_code == 1


def test_revisions_of_models_stay_in_the_file_and_lock_no_host(known: Context) -> None:
    model = ModelId("v1", "a" * 64, 7)
    lock.record(known.cluster, model)
    assert pinned.read(known.cluster) is None
    pinned.write(known.cluster, PINS)
    assert lock.read(known.cluster, "v1") == model
    assert pinned.read(known.cluster) == PINS
    lock.record(known.cluster, ModelId("v2", "b" * 64, 7))
    assert pinned.read(known.cluster) == PINS


def test_a_file_that_is_no_lock_is_bad_input(known: Context) -> None:
    lock.lock_file(known.cluster).write_text("{")
    with pytest.raises(DescriptionError, match=r"lab\.lock\.json") as error:
        pinned.read(known.cluster)
    assert error.value.exit_code == 2


@pytest.fixture
def pulled(known: Context, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Hosts that pulled their image, of the ID sha256:1, and are locked."""
    found = replace(known, archive=None)
    monkeypatch.setattr(command, "context", lambda _file, **_words: found)
    assert locked(found, monkeypatch, {}).exit_code == 0
    return found


def locked(
    known: Context, monkeypatch: pytest.MonkeyPatch, images: dict[str, str], *words: str
) -> Result:
    """What the command says where hosts have these images, and sha256:1 otherwise."""
    replies = {
        name: seen(image=images.get(name, "sha256:1"), generations=SERVING)
        for name in known.plan.hosts
    }
    return told(known, monkeypatch, replies, *words)


def told(
    known: Context, monkeypatch: pytest.MonkeyPatch, replies: dict[str, Reply], *words: str
) -> Result:
    """What the command says where hosts reply so."""
    monkeypatch.setattr(command, "context", lambda _file, **_words: known)
    monkeypatch.setattr(command, "_ask", lambda _known: replies)
    return CliRunner().invoke(command.command, [str(known.cluster.file), *words])


SERVING = json.dumps({"current": "g1", "records": [{"id": "g1", "image": "before:1"}]})
IDLE = json.dumps({"current": None, "records": []})


def seen(*, docker: str = "20.10", image: str = "", generations: str = "") -> Reply:
    """What a host says of itself."""
    lines = ["os\tDebian", "kernel\t6.1", f"docker\t{docker}", f"image\t{image}",
             f"generations\t{generations}"]  # fmt: skip
    return Reply(0, "".join(f"{line}\n" for line in lines), "")


@pytest.mark.parametrize(("image", "shown"), [("", "nothing"), ("sha256:2", "sha256:2")])
@pytest.mark.parametrize("archive", [True, False])
def test_a_host_without_the_locked_image_has_drifted(
    pulled: Context, monkeypatch: pytest.MonkeyPatch, image: str, shown: str, *, archive: bool
) -> None:
    if archive:
        known = replace(pulled, archive=Path("image.tar"))
        monkeypatch.setattr(command, "context", lambda _file, **_words: known)
    assert locked(pulled, monkeypatch, {}, "--check").output == "as locked\n"
    done = locked(pulled, monkeypatch, {"node-b": image}, "--check")
    assert done.exit_code == 1
    assert done.output == f"node-b: image.id: locked sha256:1, found {shown}\n"


def test_another_image_on_all_hosts_is_told_once(
    pulled: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dict.fromkeys(pulled.plan.hosts, "sha256:2")
    done = locked(pulled, monkeypatch, other, "--check")
    assert (done.exit_code, done.output) == (1, "image.id: locked sha256:1, found sha256:2\n")


def test_two_images_by_one_name_are_not_locked(
    pulled: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lock.lock_file(pulled.cluster).read_text()
    done = locked(pulled, monkeypatch, {"node-b": "sha256:2"})
    assert done.exit_code == 1
    assert "node-b: its image is sha256:2" in done.output
    assert "nothing was written" in done.output
    assert lock.lock_file(pulled.cluster).read_text() == before


def test_a_host_without_the_image_takes_it_from_no_lock(
    pulled: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = locked(pulled, monkeypatch, {"node-b": ""})
    assert "node-b has not the image" in done.output
    pins = pinned.read(pulled.cluster)
    assert pins is not None
    assert pins.image["id"] == "sha256:1"


BARE, NEVER = seen(docker=""), "no deploy was there"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (BARE, f"Docker does not answer, the image is not there, {NEVER}"),
        (seen(), f"the image is not there, {NEVER}"),
        (seen(image="sha256:1"), NEVER),
        (seen(image="sha256:1", docker="", generations=SERVING), "Docker does not answer"),
        (seen(generations=IDLE), "the image is not there"),
        (seen(image="sha256:1", generations="{"), "its generations cannot be read ({)"),
    ],
)
def test_a_host_without_a_deploy_is_not_locked(
    known: Context, monkeypatch: pytest.MonkeyPatch, reply: Reply, words: str
) -> None:
    deployed = seen(image="sha256:1", generations=SERVING)
    done = told(known, monkeypatch, {"node-a": deployed, "node-b": reply})
    assert done.exit_code == 1
    assert done.output == (
        f"node-b: {words}\n"
        "nothing was written: node-b has not yet what a lock holds; deploy, then lock\n"
    )
    assert not lock.lock_file(known.cluster).exists()


def test_a_standby_that_is_ready_is_locked(known: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = seen(image="sha256:1", generations=SERVING)
    ready = seen(image="sha256:1", generations=IDLE)
    assert told(known, monkeypatch, {"node-a": serving, "node-b": ready}).exit_code == 0


@pytest.mark.parametrize("others", [IDLE, SERVING.replace('"id":', '"hosts": ["node-b"], "id":')])
def test_a_first_deploy_that_broke_off_makes_no_standby(
    known: Context, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    broken = seen(image="sha256:1", generations=IDLE)
    done = told(known, monkeypatch, {"node-a": seen(image="sha256:1", generations=others),
                                     "node-b": broken})  # fmt: skip
    assert done.exit_code == 1
    assert "node-b: no deploy has come to its end there\n" in done.output
    assert not lock.lock_file(known.cluster).exists()


def test_every_host_without_a_deploy_is_named(
    known: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = told(known, monkeypatch, {"node-a": BARE, "node-b": BARE}, "--json")
    assert done.exit_code == 1
    assert [line.partition(" ")[0] for line in done.output.splitlines()[:2]] == [
        "node-a:", "node-b:"
    ]  # fmt: skip
    assert "node-a, node-b have not yet" in done.output


def test_an_image_that_somebody_removed_is_no_upgrade(
    pulled: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = SERVING.replace("before:1", pulled.plan.image)
    replies = dict.fromkeys(pulled.plan.hosts, seen(generations=serving))
    done = told(pulled, monkeypatch, replies)
    assert (done.exit_code, "node-b: the image is not there\n" in done.output) == (1, True)
    pins = pinned.read(pulled.cluster)
    assert pins is not None
    assert pins.image["id"] == "sha256:1"


def test_an_upgrade_under_a_lock_begins_with_the_lock(
    pulled: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = changed(pulled)
    with pytest.raises(RefusedError, match=r"image\.reference"):
        pinned.enforce(newer)
    done = locked(newer, monkeypatch, dict.fromkeys(newer.plan.hosts, ""))
    assert done.exit_code == 0
    assert "node-b has not the image of the description yet: deploy\n" in done.output
    assert "the image is locked by its name alone" in done.output
    assert pinned.enforce(newer) is not None
    assert locked(newer, monkeypatch, {}, "--check").output == "as locked\n"


def test_a_new_host_is_deployed_before_the_image_changes(
    pulled: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lock.lock_file(pulled.cluster).read_text()
    newer = changed(pulled)
    done = told(newer, monkeypatch, {"node-a": seen(generations=SERVING), "node-b": BARE})
    assert done.exit_code == 1
    assert "deploy with the locked image and model; then change them" in done.output
    assert lock.lock_file(pulled.cluster).read_text() == before


def test_without_a_lock_there_is_nothing_to_check(
    known: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = told(known, monkeypatch, {}, "--check")
    assert done.exit_code == 2
    file = known.cluster.file
    assert done.output == (
        f"{lock.lock_file(known.cluster)}: "
        f"there is no lock; `vllm-cluster lock {file}` writes one\n"
    )


def test_a_silent_host_is_no_drift(pulled: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"node-a": seen(image="sha256:1"), "node-b": Reply(255, "", "ssh: no route\n")}
    done = told(pulled, monkeypatch, silent, "--check")
    assert (done.exit_code, done.output) == (2, "node-b: ssh: no route\n")
    done = told(pulled, monkeypatch, silent)
    assert done.exit_code == 1
    assert "nothing was written" in done.output


def changed(known: Context) -> Context:
    """The same where the description names another image since."""
    image = known.cluster.description.image.model_copy(update={"reference": "registry/vllm:newer"})
    described = known.cluster.description.model_copy(update={"image": image})
    return replace(known, cluster=known.cluster.with_description(described))
