"""The commands that record and remove: shells take them, and the record says what was there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.removal.test_decide import FOUND, MODEL, decided
from vllm_cluster.operations import owned
from vllm_cluster.plan import paths
from vllm_cluster.plan.owned import Record, parse
from vllm_cluster.removal import look, shell
from vllm_cluster.removal.run import script


def accepted(program: str, text: str) -> None:
    done = subprocess.run([program, "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_shell_takes_what_looks_and_what_removes() -> None:
    accepted("bash", look.script())
    removal = decided(packages=True, keep_weights=False)
    accepted("bash", script(removal.actions))
    for action in removal.actions:
        accepted("bash", action.shell)
    accepted("bash", shell.record(["packages", "weights"]))


@pytest.mark.skipif(shutil.which("dash") is None, reason="the hosts' sh")
def test_the_hosts_sh_takes_what_records() -> None:
    for text in (owned.FILES, owned.PACKAGES, owned.first("hold", "a b", "c")):
        accepted("dash", text)


class Root:
    """A directory that stands in for /etc and /var of a host."""

    def __init__(self, at: Path) -> None:
        self.at = at
        (at / "etc").mkdir()

    def sh(self, functions: str, body: str) -> None:
        text = (functions + body).replace(paths.CONFIG, f"{self.at}{paths.CONFIG}")
        done = subprocess.run(
            ["sh", "-c", text.replace("ROOT", str(self.at))],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    @property
    def record(self) -> Record:
        text = (self.at / f"{paths.OWNED}/journal".lstrip("/")).read_text()
        return parse(text.replace(str(self.at), "").splitlines())


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_what_was_there_first_is_what_counts(root: Root) -> None:
    root.sh(owned.SHELL, "own sysctl a.b 60 && own sysctl a.b 10 && own sysctl a.b.c 1")
    assert root.record.first("sysctl") == {"a.b": "60", "a.b.c": "1"}


def test_a_name_in_another_line_is_not_that_line(root: Root) -> None:
    root.sh(owned.SHELL, "own profile /a x && own file /a y && own file '/a\\x2d*' z && "
            "own file '/a\\x2d*' again")  # fmt: skip
    assert root.record.lines == {
        "profile": {"/a": ("x",)}, "file": {"/a": ("y",), r"/a\x2d*": ("z",)}
    }  # fmt: skip


CUT = [
    "fi", "file\t", "file\t/etc/sy", "file\t/etc/mine", "file\t/etc/mine\t",
    "file\t/etc/mine\tabs", "file\t/etc/mine\tabsent", "file\t/etc/mine\tabs\t\t", "\0\0",
]  # fmt: skip


@pytest.mark.parametrize("cut", CUT)
def test_a_line_that_a_full_disk_cut_off_is_written_again(root: Root, cut: str) -> None:
    folder = root.at / paths.OWNED.lstrip("/")
    folder.mkdir(parents=True)
    half = cut.replace("/etc", f"{root.at}/etc")
    (folder / "journal").write_text(f"sysctl\ta.b\t60\n{half}")
    (root.at / "etc/mine").write_text("mine\n")
    for _ in range(2):
        root.sh(owned.FILES, "own_file ROOT/etc/mine Managed && own sysctl a.b 10")
    first = root.record.first("file")
    assert (folder / first["/etc/mine"]).read_text() == "mine\n"
    assert set(first) == {"/etc/mine"}
    assert root.record.lines["sysctl"] == {"a.b": ("60",)}
    assert (folder / "journal").read_text().count("/etc/mine") <= 2


@pytest.mark.parametrize("cut", CUT)
def test_a_look_at_a_record_that_was_cut_off_sees_all_whole_lines(root: Root, cut: str) -> None:
    folder = root.at / paths.OWNED.lstrip("/")
    folder.mkdir(parents=True)
    (root.at / "etc/ours").write_text("ours\n")
    (folder / "journal").write_text(f"file\t{root.at}/etc/ours\tabsent\n{cut}")
    text = look.script().replace(paths.CONFIG, f"{root.at}{paths.CONFIG}")
    out = subprocess.run(["bash", "-s"], input=text, capture_output=True, text=True, check=False)
    found = look.parse(out.stdout.splitlines())
    assert found.record.lines == {"file": {f"{root.at}/etc/ours": ("absent",)}}
    assert set(found.now) == {f"{root.at}/etc/ours"}
    assert len(found.now[f"{root.at}/etc/ours"]) == 64


@pytest.mark.parametrize(("comment", "asked"), [("vllm-cluster: SSH", True), ("SSH", False)])
def test_rules_of_ours_are_seen_in_an_ufw_that_is_off(
    root: Root, comment: str, asked: bool
) -> None:
    (root.at / "etc/ufw").mkdir()
    (root.at / "etc/ufw/ufw.conf").write_text("ENABLED=no\n")
    rule = f"### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in comment={comment.encode().hex()}"
    (root.at / "etc/ufw/user.rules").write_text(f"{rule}\n")
    line = f"ufw allow 22/tcp comment '{comment}'"
    (root.at / "ufw").write_text(f'#!/bin/sh\necho "{line}"\n')
    (root.at / "ufw").chmod(0o755)
    text = look.script().replace("/etc/ufw", f"{root.at}/etc/ufw")
    env = {"PATH": f"{root.at}:/usr/sbin:/usr/bin:/sbin:/bin"}
    out = subprocess.run(
        ["bash", "-s"], input=text, env=env, capture_output=True, text=True, check=False
    )
    assert look.parse(out.stdout.splitlines()).ufw == ((line,) if asked else ())


def test_a_file_and_the_directories_on_its_way(root: Root) -> None:
    body = "own_dirs ROOT/etc/a/b/f && mkdir -p ROOT/etc/a/b && echo Managed >ROOT/etc/new && "
    body += "own_file ROOT/etc/a/b/f Managed && own_wrote ROOT/etc/a/b/f ROOT/etc/new"
    root.sh(owned.FILES, body)
    assert root.record.first("file") == {"/etc/a/b/f": "absent"}
    assert set(root.record.first("directory")) == {"/etc/a", "/etc/a/b"}
    assert len(root.record.last("wrote")["/etc/a/b/f"]) == 64


def test_a_file_that_was_there_is_kept_but_not_one_of_ours(root: Root) -> None:
    (root.at / "etc/theirs").write_text("theirs\n")
    (root.at / "etc/ours").write_text("# Managed by us\n")
    root.sh(owned.FILES, "own_file ROOT/etc/theirs Managed; own_file ROOT/etc/ours Managed")
    copy = root.record.first("file")["/etc/theirs"]
    assert (root.at / f"{paths.OWNED}/{copy}".lstrip("/")).read_text() == "theirs\n"
    assert root.record.first("file")["/etc/ours"] == "absent"


def test_every_merge_is_kept_as_a_pair(root: Root) -> None:
    for number in range(2):
        (root.at / "etc/new").write_text(f"{number}\n")
        root.sh(owned.FILES, "own_merge ROOT/etc/daemon.json ROOT/etc/new && "
                "mv ROOT/etc/new ROOT/etc/daemon.json")  # fmt: skip
    keys = root.record.every("merge")["/etc/daemon.json"]
    folder = root.at / paths.OWNED.lstrip("/")
    assert [(folder / f"{key}.new").read_text() for key in keys] == ["0\n", "1\n"]
    assert not (folder / f"{keys[0]}.old").exists()
    assert (folder / f"{keys[1]}.old").read_text() == "0\n"


def test_the_rest_of_a_record_is_what_a_later_removal_is_asked_for(root: Root) -> None:
    lines = ["package\tx\tpurge", f"weights\t{MODEL}\tabsent", "file\t/a\tabsent"]
    folder = root.at / paths.OWNED.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "journal").write_text("\n".join(lines) + "\n")
    (folder / "1.old").write_text("copy")
    root.sh("", shell.record(["weights"]))
    assert set(root.record.lines) == {"weights"}
    assert [path.name for path in folder.iterdir()] == ["journal"]
    root.sh("", shell.record([]))
    assert not folder.exists()


def test_the_rest_of_a_record_has_no_line_that_was_cut_off(root: Root) -> None:
    folder = root.at / paths.OWNED.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "journal").write_text(f"weights\t{MODEL}\tabsent\nweights\t/x\tthe")
    root.sh("", shell.record(["weights"]))
    root.sh(owned.SHELL, "own weights /y there")
    assert root.record.first("weights") == {MODEL: "absent", "/y": "there"}


class State:
    """A directory that stands in for paths.STATE."""

    def __init__(self, at: Path) -> None:
        self.at = at / "state"
        self.programs = at / "bin"
        self.programs.mkdir()

    def holds(self, *names: str) -> None:
        for name in names:
            (self.at / name).parent.mkdir(parents=True, exist_ok=True)
            (self.at / name).write_text("")

    def mounted(self, name: str) -> None:
        program = self.programs / "mountpoint"
        program.write_text(f'#!/bin/sh\n[ "$2" = {self.at}/{name} ]\n')
        program.chmod(0o755)

    def removed(self, *spared: str) -> subprocess.CompletedProcess[str]:
        text = shell.no_state(f"{paths.STATE}/{name}" for name in spared)
        return subprocess.run(
            ["bash", "-ec", text.replace(paths.STATE, str(self.at))],
            env={"PATH": f"{self.programs}:/usr/bin:/bin"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.at.iterdir())


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def test_state_is_removed_around_the_weights(state: State) -> None:
    state.holds(
        "models/tiny/x", "ray/sessions/y", "weights/z", "weights-verified.json",
        "weights-verified.json.17.new", "image-versions", "daemon.json.written",
    )  # fmt: skip
    done = state.removed("models", "models/tiny")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert state.names == ["models"]
    assert (state.at / "models/tiny/x").exists()


def test_what_others_keep_beside_our_state_stays_and_is_named(state: State) -> None:
    state.holds("datasets/x", ".hidden/y", "ray/z", "weights-verified.json.mine")
    done = state.removed("models")
    assert done.returncode == 9, done.stderr
    assert done.stdout == "not ours, and stays: datasets weights-verified.json.mine .hidden\n"
    assert state.names == [".hidden", "datasets", "weights-verified.json.mine"]


def test_a_file_system_in_our_place_is_not_emptied(state: State) -> None:
    state.holds("compile-cache/x", "ray/y")
    state.mounted("compile-cache")
    done = state.removed("models")
    assert (done.returncode, done.stdout) == (
        9, "not ours, and stays: compile-cache (a file system)\n"
    ), done.stderr  # fmt: skip
    assert (state.at / "compile-cache/x").exists()
    assert state.names == ["compile-cache"]


def test_directories_that_others_use_too_are_named_once_and_no_more_than_a_few(
    tmp_path: Path,
) -> None:
    full = [f"d{n}/in" for n in range(6)]
    made = [*full, "empty", "weights", *(f"d{n}" for n in range(6))]
    for name in made:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for name in (*full, "weights"):
        (tmp_path / name / "theirs").write_text("")
    text = shell.no_directories([f"{tmp_path}/{name}" for name in made], [f"{tmp_path}/weights"])
    for path in (paths.CONFIG, paths.SCRIPTS, "/run/"):
        text = text.replace(path, f"{tmp_path}/none{path}")
    done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    named = ", ".join(f"{tmp_path}/d{n}/in" for n in range(4))
    assert done.stdout == f"not ours alone, and not empty: {named} and 2 more\n"
    assert not (tmp_path / "empty").exists()
    assert (tmp_path / "weights/theirs").exists()


def test_nothing_of_ours_stays_in_run(tmp_path: Path) -> None:
    ours = ["vllm-cluster/units/x", "vllm-cluster/rdma.env", "vllm-cluster-locked.pref"]
    for name in ours:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    text = shell.no_directories([], []).replace("/run/", f"{tmp_path}/")
    text = text.replace(paths.CONFIG, f"{tmp_path}/none").replace(paths.SCRIPTS, f"{tmp_path}/none")
    subprocess.run(["bash", "-ec", text], check=True)
    # The lock of this very run: it goes with it.
    assert [path.name for path in tmp_path.rglob("*")] == ["vllm-cluster"]


def test_every_path_that_we_have_in_our_state_is_removed() -> None:
    beneath = [value for value in vars(paths).values() if str(value).startswith(f"{paths.STATE}/")]
    assert paths.RPC in beneath
    for path in beneath:
        assert any(f"{path}/".startswith(f"{ours}/") for ours in shell.STATE), path


def test_the_fixture_is_what_a_host_prints() -> None:
    assert FOUND.record.first("weights") == {MODEL: "absent"}
