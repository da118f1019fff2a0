"""A host's key replaced in known_hosts: its own lines, and nobody else's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vllm_cluster.rebuild import known_hosts
from vllm_cluster.rebuild.known_hosts import Place


def pair(folder: Path, name: str) -> str:
    """`TYPE BASE64` of a new key."""
    file = folder / name
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(argv, check=True)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    return {name: pair(tmp_path, name) for name in ("old", "new", "other")}


@pytest.fixture
def place(tmp_path: Path, keys: dict[str, str]) -> Place:
    file = tmp_path / "known_hosts"
    file.write_text(
        "# mine\n"
        f"node-b,10.0.0.2 {keys['old']}\n"
        f"node-a,10.0.0.1 {keys['other']}\n"
        f"@cert-authority *.example.com {keys['other']}\n"
    )
    return Place(file, ("10.0.0.2",))


def test_the_fingerprint_is_ssh_keygens(tmp_path: Path, keys: dict[str, str]) -> None:
    argv = ["ssh-keygen", "-lf", str(tmp_path / "new.pub")]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert shown.split()[1] == known_hosts.fingerprint(keys["new"])


def test_a_key_is_replaced_for_all_names_of_its_host(place: Place, keys: dict[str, str]) -> None:
    assert known_hosts.keys(place) == [keys["old"]]
    known_hosts.replace(place, keys["new"])
    assert known_hosts.keys(place) == [keys["new"]]
    assert place.file.read_text().splitlines() == [
        "# mine",
        f"node-a,10.0.0.1 {keys['other']}",
        f"@cert-authority *.example.com {keys['other']}",
        f"10.0.0.2,node-b {keys['new']}",
    ]
    assert keys["old"] in place.file.with_name("known_hosts.old").read_text()


def test_hashed_names_are_found(place: Place, keys: dict[str, str]) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(place.file)], check=True, capture_output=True)
    assert "10.0.0.2" not in place.file.read_text()
    assert known_hosts.keys(place) == [keys["old"]]
    known_hosts.replace(place, keys["new"])
    assert known_hosts.keys(place) == [keys["new"]]


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_of_another_host_stays_one(
    tmp_path: Path, keys: dict[str, str], end: str
) -> None:
    place = Place(tmp_path / "known_hosts", ("node-b",))
    place.file.write_text(f"\nnode-a {keys['other']}{end}")
    known_hosts.replace(place, keys["new"])
    assert place.file.read_text() == f"\nnode-a {keys['other']}\nnode-b {keys['new']}\n"
    assert known_hosts.keys(Place(place.file, ("node-a",))) == [keys["other"]]
    alone = Place(tmp_path / "alone", ("node-b",))
    alone.file.write_text(f"node-b {keys['old']}{end}")
    known_hosts.replace(alone, keys["new"])
    assert alone.file.read_text() == f"node-b {keys['new']}\n"


def test_a_pattern_of_more_hosts_keeps_its_key(tmp_path: Path, keys: dict[str, str]) -> None:
    place = Place(tmp_path / "known_hosts", ("node-b.example.com",))
    place.file.write_text(
        f"front,*.example.com {keys['other']} of all\n"
        f"Node-b.example.com,node-?.example.com,!node-c.example.com,b {keys['old']} x y\n"
        f"b {keys['old']}\n"
    )
    known_hosts.replace(place, keys["new"])
    again = place.file.read_text()
    assert again.splitlines() == [
        f"front,*.example.com {keys['other']} of all",
        f"node-?.example.com,!node-c.example.com {keys['old']} x y",
        f"node-b.example.com,Node-b.example.com,b {keys['new']}",
    ]
    known_hosts.replace(place, keys["new"])
    assert place.file.read_text() == again
    for name in ("front", "node-x1.example.com"):
        assert known_hosts.keys(Place(place.file, (name,))) == [keys["other"]]


def test_a_link_and_a_mode_stay_what_they_are(tmp_path: Path, keys: dict[str, str]) -> None:
    real = tmp_path / "real"
    real.write_text(f"node-a {keys['other']}\n")
    real.chmod(0o600)
    (tmp_path / "known_hosts").symlink_to("real")
    known_hosts.replace(Place(tmp_path / "known_hosts", ("node-b",)), keys["new"])
    assert (tmp_path / "known_hosts").is_symlink()
    assert real.read_text().endswith(f"node-b {keys['new']}\n")
    assert real.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_is_made(tmp_path: Path, keys: dict[str, str]) -> None:
    new = Place(tmp_path / "sub" / "known_hosts", ("h",))
    assert known_hosts.keys(new) == []
    known_hosts.replace(new, keys["new"])
    assert new.file.read_text() == f"h {keys['new']}\n"


def test_the_place_is_openssh_s_own(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host b\n  HostName 10.0.0.2\n  UserKnownHostsFile {tmp_path}/k\n")
    assert known_hosts.place(["ssh", "-F", str(config), "b"], 22) == Place(
        tmp_path / "k", ("b", "10.0.0.2")
    )
    named = ["ssh", "-F", str(config), "-o", f"UserKnownHostsFile={tmp_path}/mine", "b"]
    assert known_hosts.place(named, 2222) == Place(
        tmp_path / "mine", ("[b]:2222", "[10.0.0.2]:2222")
    )


@pytest.mark.parametrize("file", ["none", "/dev/null", "{here}", "{here}/link"])
def test_what_keeps_no_keys_is_no_place(tmp_path: Path, file: str) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    named = file.format(here=tmp_path)
    with pytest.raises(ValueError, match="names no file that keeps keys") as refused:
        known_hosts.place(["ssh", "-F", "none", "-o", f"UserKnownHostsFile={named}", "b"], 22)
    assert named in str(refused.value)


def test_a_link_to_a_file_is_a_place(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to("real")
    named = ["ssh", "-F", "none", "-o", f"UserKnownHostsFile={tmp_path}/link", "b"]
    assert known_hosts.place(named, 22).file == tmp_path / "link"
