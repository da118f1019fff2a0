"""What a unit asks before it starts, and what a deploy asks at every run."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.weights.agent.cli import main
from vllm_cluster.weights.agent.layout import Layout
from vllm_cluster.weights.agent.scan import SourceFile, scan
from vllm_cluster.weights.seen import Seen, look_script, read_look

MODEL, REVISION = "org/m", "r1"


class Host:
    """A root with a model placed in it, asked through the command line."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self.root, self.capsys = base, base / "root", capsys
        self.source = base / "source"
        self.source.mkdir()
        (self.source / "config.json").write_text("{}")
        (self.source / "m.safetensors").write_bytes(b"w" * 500_000)

    def __call__(self, *words: str) -> tuple[int, Any, str]:
        status = main(["--root", str(self.root), "--json", *words])
        out, err = self.capsys.readouterr()
        return status, json.loads(out.splitlines()[-1]) if out else None, err

    def place(self) -> str:
        wish = self.base / "wish.json"
        source = {"kind": "directory", "path": str(self.source), "mode": "copy"}
        wish.write_text(json.dumps({"model": MODEL, "revision": REVISION, "sources": [source],
                                    "reserve_bytes": 0}))  # fmt: skip
        status, answer, err = self("obtain", "--wish", str(wish))
        assert status == 0, err
        return str(answer["identity"])

    def check(self, *more: str) -> tuple[int, Any, str]:
        return self("check", "--model", MODEL, "--revision", REVISION, *more)

    def look(self, *more: str) -> Any:
        return self("look", "--model", MODEL, "--revision", REVISION, *more)[1]


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, capsys)


def test_a_unit_that_starts_is_a_user_of_the_copy_and_of_no_other(host: Host) -> None:
    identity = host.place()
    assert host.check("--identity", identity, "--pin", "vllm.service")[0] == 0
    key = f"org--m@{identity[:16]}"
    assert [p.name for p in (host.root / ".pins" / key).iterdir()] == ["vllm.service"]
    assert host.look()["copy"]["users"] == ["vllm.service"]
    status, _, err = host("remove", "--key", key)
    assert status == 1
    assert "is used by vllm.service; it stays" in err


def test_a_unit_that_is_refused_is_no_user(host: Host) -> None:
    host.place()
    status, answer, err = host.check("--identity", "0" * 64, "--pin", "vllm.service")
    assert status == 1
    assert "the cluster's is 0000000000000000: place it again" in err
    assert answer["error"]["message"] in err
    assert list((host.root / ".pins").iterdir()) == []


def test_a_check_says_how_large_the_copy_is_for_those_that_will_take_it(host: Host) -> None:
    identity = host.place()
    status, answer, _ = host.check()
    assert (status, answer["identity"]) == (0, identity)
    assert answer["total_bytes"] == host.look()["copy"]["total_bytes"] > 0


def test_a_look_tells_copy_reasons_and_jobs(host: Host) -> None:
    why = [f"{MODEL} at {REVISION} is not placed: {host.root}/org--m/{REVISION} does not exist"]
    assert host.look() == {"copy": None, "jobs": [], "why": why, "lines": why}
    identity = host.place()
    seen = host.look()
    assert (seen["copy"]["identity"], seen["copy"]["ok"], seen["why"]) == (identity, True, [])
    assert [job["phase"] for job in seen["jobs"]] == ["done"]
    (host.root / "org--m" / REVISION / "config.json").unlink()
    seen = host.look()
    assert (seen["copy"]["ok"], seen["why"]) == (False, ["config.json: the file is missing"])


def test_one_identity_alone_is_placed_when_it_is_known(host: Host) -> None:
    identity = host.place()
    host("remove", "--key", f"org--m@{identity[:16]}")
    wish = host.base / "wish.json"
    wish.write_text(json.dumps({**json.loads(wish.read_text()), "identity": "0" * 64}))
    status, _, err = host("obtain", "--wish", str(wish))
    assert status == 1
    assert f"is {identity[:16]}, not the cluster's {'0' * 16}; it was not placed" in err
    assert Layout(host.root).placed_keys() == []
    assert not os.path.lexists(host.root / "org--m" / REVISION)


def test_a_secret_of_a_download_is_a_file_of_roots_while_it_runs_and_gone_after(
    host: Host,
) -> None:
    token, seen = host.root / ".jobs" / "token", host.base / "seen"
    into = host.root / ".staging" / "d"
    script = (
        f"stat -c %a {token} > {seen}; cat {token} >> {seen}; mkdir -p {into}; "
        f"echo '{{}}' > {into}/config.json; "
        f"""echo '{{"files": [{{"path": "config.json", "size": 3}}]}}' > {into}.expected.json"""
    )
    wish = host.base / "wish.json"
    wish.write_text(json.dumps({
        "model": MODEL, "revision": REVISION, "reserve_bytes": 0, "secrets": {str(token): "hf_x"},
        "sources": [{"kind": "download", "argv": ["sh", "-c", script], "into": str(into)}],
    }))  # fmt: skip
    status, _, err = host("obtain", "--wish", str(wish))
    assert status == 0, err
    assert seen.read_text() == "600\nhf_x"
    assert not token.exists()


def test_nothing_is_downloaded_where_the_disk_is_not_mounted(host: Host) -> None:
    into, wish = host.root / ".staging" / "d", host.base / "wish.json"
    wish.write_text(json.dumps({
        "model": MODEL, "revision": REVISION, "mountpoint": str(host.base),
        "sources": [{"kind": "download", "argv": ["mkdir", str(into)], "into": str(into)}],
    }))  # fmt: skip
    status, _, err = host("obtain", "--wish", str(wish))
    assert status == 1
    assert f"{host.base} is not mounted" in err
    assert not into.exists()


def test_a_pushed_file_that_came_wrong_is_pushed_anew_by_the_next_run(host: Host) -> None:
    into, wish = host.root / ".staging" / "x.pushed", host.base / "wish.json"
    into.mkdir(parents=True)
    (into / "config.json").write_bytes(b"{ ")  # the size that it should have: rsync would skip it
    files = [{"path": "config.json", "size": 2, "sha256": "0" * 64}]
    source = {"kind": "directory", "path": str(into), "mode": "move", "files": files}
    wish.write_text(json.dumps({"model": MODEL, "revision": REVISION, "reserve_bytes": 0,
                                "sources": [source]}))  # fmt: skip
    status, _, err = host("obtain", "--wish", str(wish))
    assert status == 1
    assert "config.json: SHA-256 is" in err
    assert not (into / "config.json").exists()


@pytest.mark.parametrize(("bytes_", "status"), [("1000", 0), (str(1 << 60), 1)])
def test_a_push_is_refused_before_its_first_byte(host: Host, bytes_: str, status: int) -> None:
    into = host.root / ".staging" / "x.pushed"
    asked = ["room", "--into", str(into), "--bytes", bytes_, "--reserve-bytes", "0"]
    assert host(*asked)[0] == status
    assert host(*asked, "--mountpoint", str(host.base))[0] == 1, "no disk is mounted there"


# -- a file system of others ----------------------------------------------------------------------


def aside(host: Host) -> tuple[str, ...]:
    return ("--path", str(host.source), "--notes", str(host.base / "notes"))


def test_a_model_of_others_is_read_once_and_then_looked_at(host: Host) -> None:
    assert "was not read yet" in host.look(*aside(host))["why"][0]
    named = ("--model", MODEL, "--revision", REVISION)
    status, answer, _ = host("note", *named, *aside(host))
    assert status == 0
    assert host.check(*aside(host), "--identity", answer["identity"])[0] == 0
    assert host.look(*aside(host))["copy"]["ok"]
    assert not host.root.exists(), "nothing is written where the model lies"
    assert sorted(p.name for p in host.source.iterdir()) == ["config.json", "m.safetensors"]

    (host.source / "m.safetensors").write_bytes(b"x" * 500_000)
    status, _, err = host.check(*aside(host), "--identity", answer["identity"])
    assert status == 4
    assert "m.safetensors: was written to after it was verified" in err


def test_another_host_takes_the_notes_when_it_sees_the_same_files(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ("--model", MODEL, "--revision", REVISION)
    answer = host("note", *named, *aside(host))[1]
    other = ("--path", str(host.source), "--notes", str(host.base / "others"))
    given = ("note", *named, *other, "--given", "--identity", answer["identity"])

    def take() -> int:
        monkeypatch.setattr("sys.stdin", StringIO(json.dumps(answer["notes"])))
        return host(*given)[0]

    assert take() == 0
    assert host.check(*other, "--identity", answer["identity"])[0] == 0
    (host.source / "extra.bin").write_bytes(b"?")
    assert take() == 4


def test_a_file_system_that_numbers_its_files_anew_is_read_like_any_other(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FUSE does when the kernel forgot a file meanwhile."""
    number = itertools.count()

    def numbered_anew(directory: Path) -> list[SourceFile]:
        return [replace(file, inode=next(number)) for file in scan(directory)]

    monkeypatch.setattr("vllm_cluster.weights.agent.aside.scan", numbered_anew)
    status, _, err = host("note", "--model", MODEL, "--revision", REVISION, *aside(host))
    assert (status, err) == (0, "")


def test_no_unit_starts_with_a_model_of_others_that_was_read_with_wrong_bytes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the server flipped them: name, size and times are as they were."""
    named = ("--model", MODEL, "--revision", REVISION)
    answer = host("note", *named, *aside(host))[1]
    identity = ("--identity", answer["identity"])
    other = ("--path", str(host.source), "--notes", str(host.base / "others"))
    monkeypatch.setattr("sys.stdin", StringIO(json.dumps(answer["notes"])))
    assert host("note", *named, *other, "--given", *identity)[0] == 0
    shard = host.source / "m.safetensors"
    before = shard.stat()
    shard.write_bytes(b"x" * 500_000)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert host.check(*aside(host), *identity)[0] == 0, "a glance cannot know"

    status, found, err = host("note", *named, *aside(host), *identity)
    assert status == 4
    assert "other than when they were noted: m.safetensors" in err
    why = "m.safetensors: held wrong bytes when it was last read, or was not read yet"
    status, _, err = host.check(*aside(host), *identity)
    assert (status, err) == (4, f"{why}\n")
    assert host.look(*aside(host))["copy"]["unproven"] == ["m.safetensors"]
    # ... and on the host that did not read it
    assert host.check(*other, *identity)[0] == 0
    monkeypatch.setattr("sys.stdin", StringIO(json.dumps(found["found"])))
    assert host("note", *named, *other, "--found", *identity)[0] == 0
    assert host.check(*other, *identity)[2] == f"{why}\n"

    shard.write_bytes(b"w" * 500_000)
    assert host("note", *named, *aside(host), *identity)[0] == 0
    assert host.check(*aside(host), *identity)[0] == 0


@pytest.mark.parametrize("copied", [True, False])
def test_a_server_or_a_disk_that_fails_is_told_from_a_model_that_differs(
    host: Host, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    where = () if copied else aside(host)
    if copied:
        host.place()
    else:
        host("note", "--model", MODEL, "--revision", REVISION, *where)
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "m.safetensors":
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(Path, "lstat", stat)
    status, _, err = host.check(*where)
    assert status == 5
    assert "m.safetensors: Stale file handle" in err


# -- read on the control machine ------------------------------------------------------------------


def test_the_look_is_one_script_and_its_answer_is_read() -> None:
    script = look_script("/a.pyz", ["python3", "/a.pyz"], ["--model", "m"])
    assert "--json look --model m" in script
    copy = {"identity": "a" * 64, "ok": True}
    line = json.dumps({"copy": copy, "why": [], "jobs": [], "lines": []})
    seen = read_look(["agent abc", line])
    assert (seen.agent, seen.identity) == ("abc", "a" * 64)
    assert seen.trouble("a" * 64, "abc") == ""
    assert "another version" in seen.trouble("a" * 64, "abd")
    assert "not recorded yet" in seen.trouble("", "abc")
    assert seen.trouble("b" * 64, "abc") == f"is {'a' * 16}, not {'b' * 16}"


@pytest.mark.parametrize("lines", [["agent ", "sh: python3: not found"], [], ["agent x", "{oops"]])
def test_what_is_no_answer_is_a_problem_in_its_own_words(lines: list[str]) -> None:
    seen = read_look(lines)
    assert not seen.identity
    assert seen.problem
    assert seen.trouble("a" * 64, seen.agent)


def test_a_copy_that_is_not_whole_has_no_identity() -> None:
    assert not Seen(copy={"identity": "a" * 64, "ok": False}).identity
