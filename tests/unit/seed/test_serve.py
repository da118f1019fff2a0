"""A seed over HTTP, in a directory, on an image."""

from __future__ import annotations

import io
import subprocess
import threading
from pathlib import Path

import httpx
import pycdlib
import pytest
from click.testing import CliRunner, Result

from tests.unit.seed.cases import PROD, section, seed
from vllm_cluster.commands.seed import command
from vllm_cluster.seed import host_key, put
from vllm_cluster.seed.serve import Server, listen_at
from vllm_cluster.spec import load


def test_it_ends_when_the_machine_has_all_files() -> None:
    said: list[str] = []
    made, _ = seed("cloud-init", "debian-12")
    server = Server(made, "127.0.0.1", 0, said.append)
    try:
        assert not server.wait(0.01)
        for name, text in made.files.items():
            assert httpx.get(server.url + name).text == text
        assert server.wait(1)
    finally:
        server.close()
    assert said[0].startswith("127.0.0.1 fetched user-data, ")
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


@pytest.mark.parametrize("path", ["", "etc/passwd", ".", "user-data/"])
def test_it_gives_nothing_but_the_seed(path: str) -> None:
    made, _ = seed("cloud-init", "debian-12")
    server = Server(made, "127.0.0.1", 0, lambda _: None)
    try:
        assert httpx.get(server.url + path).status_code == 404
    finally:
        server.close()


def test_a_seed_with_a_host_key_lies_behind_a_path_that_nobody_guesses() -> None:
    made, _ = seed("preseed", "debian-12", key=True)
    server = Server(made, "127.0.0.1", 0, lambda _: None)
    try:
        root = server.url.rstrip("/").rpartition("/")[0]
        assert httpx.get(f"{root}/preseed.cfg").status_code == 404
        assert "PRIVATE KEY" in httpx.get(f"{server.url}preseed.cfg").text
    finally:
        server.close()


@pytest.mark.parametrize("text", ["0.0.0.0:80", ":80", "8080", "host:80", "127.0.0.1:x", "::1:80"])
def test_the_address_is_one_of_this_machine(text: str) -> None:
    with pytest.raises(ValueError, match="accepted: an IPv4 address"):
        listen_at(text)


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    made, _ = seed("preseed", "debian-12", key=True)
    assert put.directory(made, tmp_path) == put.directory(made, tmp_path)
    assert (tmp_path / "preseed.cfg").stat().st_mode & 0o777 == 0o600
    (tmp_path / "preseed.cfg").write_text("mine")
    with pytest.raises(FileExistsError):
        put.directory(made, tmp_path)
    assert (tmp_path / "preseed.cfg").read_text() == "mine"


def test_the_image_is_labelled_and_holds_the_files(tmp_path: Path) -> None:
    made, _ = seed("autoinstall", "ubuntu-24.04")
    file = tmp_path / "seed.iso"
    put.iso(made, file)
    blkid = ["blkid", "--probe", "--output", "export", str(file)]
    shown = subprocess.run(blkid, capture_output=True, text=True, check=True).stdout
    assert {"LABEL=CIDATA", "TYPE=iso9660"} <= set(shown.splitlines())
    image = pycdlib.PyCdlib()
    image.open(str(file))
    for name, text in made.files.items():
        buffer = io.BytesIO()
        image.get_file_from_iso_fp(buffer, rr_path=f"/{name}")
        assert buffer.getvalue().decode() == text
    image.close()


@pytest.fixture
def description(tmp_path: Path) -> Path:
    file = tmp_path / "prod.yaml"
    file.write_text(PROD.read_text() + section("debian-12", "  host_key: seed\n"))
    return file


def ran(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_the_host_key_is_made_once_and_stays(description: Path, tmp_path: Path) -> None:
    first = ran(str(description), "--host", "node-b", "--out", str(tmp_path / "one"))
    assert first.exit_code == 0, first.output
    pair = host_key.kept(load(description), "node-b")
    assert pair is not None
    text = (tmp_path / "one/preseed.cfg").read_text()
    assert all(line in text for line in pair.private.splitlines())
    derived = ["ssh-keygen", "-y", "-f", str(next(tmp_path.rglob("ssh_host_ed25519_key")))]
    public = subprocess.run(derived, capture_output=True, text=True, check=True).stdout
    assert public.split()[:2] == pair.public.split()[:2]
    assert ran(str(description), "--host", "node-b", "--out", str(tmp_path / "one")).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--iso", "x", "--out", "y"], "accepted: one of them"),
        (["--serve", "0.0.0.0:1"], "--serve: found '0.0.0.0:1'"),
        (["--iso", "x"], "Debian's installer looks for no such image"),
    ],
)
def test_senseless_options_are_bad_input(description: Path, words: list[str], said: str) -> None:
    done = ran(str(description), "--host", "node-b", *words)
    assert done.exit_code == 2
    assert said in done.output


def test_two_servers_cannot_have_one_port(description: Path) -> None:
    made, _ = seed("preseed", "debian-12")
    server = Server(made, "127.0.0.1", 0, lambda _: None)
    try:
        port = server.url.rstrip("/").rpartition(":")[2]
        done = ran(str(description), "--host", "node-b", "--serve", f"127.0.0.1:{port}")
        assert done.exit_code == 1
        assert "Address already in use" in done.output
    finally:
        server.close()


def test_wait_ends_soon_after_the_needed_files() -> None:
    made, _ = seed("preseed", "debian-12")
    server = Server(made, "127.0.0.1", 0, lambda _: None)
    try:
        waiter = threading.Thread(target=server.wait, daemon=True)
        waiter.start()
        httpx.get(f"{server.url}preseed.cfg")
        waiter.join(5)
        assert not waiter.is_alive()
    finally:
        server.close()
