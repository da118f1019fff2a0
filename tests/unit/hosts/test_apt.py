"""Repositories for each system, and keys known by their fingerprints."""

from __future__ import annotations

import base64

import pytest

from vllm_cluster.facts.apt import AptFact
from vllm_cluster.plan.apt import System, cuda, docker, named_elsewhere, toolkit
from vllm_cluster.plan.openpgp import armored, binary, fingerprints
from vllm_cluster.spec.hosts_model import AptSource

# An ed25519 key made for this test alone; its fingerprint is gpg's.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawxlzxYJKwYBBAHaRw8BAQdAqQiXnG5lctvd101dWLaYR1Ril/Gg+NL3OWLu
VMk1Pl+0HXRlc3Qga2V5IDxub2JvZHlAZXhhbXBsZS5jb20+iJAEExYIADgWIQTV
SuJPC0WB+QhW/d5NN1adDEvpygUCawxlzwIbAwULCQgHAgYVCgkICwIEFgIDAQIe
AQIXgAAKCRBNN1adDEvpyg5DAP47qENQ3sMzA58qS2cuFcEIFxGvtGFEbm3OIKUJ
cJj20QEA/lokZ2fZyy2WC46+1MRN4glaiapvSK+c+kRpvdcypwA=
=oZuW
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "D54AE24F0B4581F90856FDDE4D37569D0C4BE9CA"

DEBIAN_12 = System("debian", "12", "bookworm", "amd64")
DEBIAN_13 = System("debian", "13", "trixie", "amd64")
UBUNTU_22 = System("ubuntu", "22.04", "jammy", "amd64")
UBUNTU_24 = System("ubuntu", "24.04", "noble", "arm64")


@pytest.mark.parametrize(
    ("answer", "system"),
    [
        ("system debian 12 bookworm amd64", DEBIAN_12),
        ("system debian 13 trixie amd64", DEBIAN_13),
        ("system ubuntu 22.04 jammy amd64", UBUNTU_22),
        ("system ubuntu 24.04 noble arm64", UBUNTU_24),
    ],
)
def test_a_system_is_known_by_its_os_release(answer: str, system: System) -> None:
    assert AptFact().process([answer]).system == system


@pytest.mark.parametrize(
    ("system", "folder"),
    [
        (DEBIAN_12, "debian12/x86_64"),
        (DEBIAN_13, "debian13/x86_64"),
        (UBUNTU_22, "ubuntu2204/x86_64"),
        (UBUNTU_24, "ubuntu2404/sbsa"),
    ],
)
def test_each_system_has_its_folder_of_drivers(system: System, folder: str) -> None:
    found = cuda(None, system)
    assert found.uri.endswith(f"/cuda/repos/{folder}")
    assert found.key_url == f"{found.uri}/3bf863cc.pub"


def test_the_toolkit_has_one_repository_and_docker_one_a_release() -> None:
    assert {toolkit(None, system).uri.rsplit("/", 1)[1] for system in (DEBIAN_12, UBUNTU_22)} == {
        "amd64"
    }
    found = docker(None, UBUNTU_24)
    assert (found.uri.rsplit("/", 1)[1], found.suite, found.components) == (
        "ubuntu", "noble", ("stable",)
    )  # fmt: skip


def test_a_mirror_replaces_the_vendors_address_key_and_all() -> None:
    source = AptSource(
        uri="https://mirror.example.com/ctk",
        key="https://mirror.example.com/k",
        fingerprint="A" * 40,
    )
    found = toolkit(source, UBUNTU_22)
    assert found.text("c") == (
        "# Managed by vllm-cluster for c. Changes here are undone by the next run.\n"
        "Types: deb\nURIs: https://mirror.example.com/ctk\nSuites: ./\n"
        "Signed-By: /etc/apt/keyrings/vllm-cluster-nvidia-toolkit.asc\n"
    )


def test_a_source_of_the_users_for_the_same_place_is_found() -> None:
    ours = toolkit(None, DEBIAN_12)
    place = "https://nvidia.github.io/libnvidia-container/stable/deb"
    theirs = [
        ("/etc/apt/sources.list", "deb http://mirror.example.org/debian bookworm main"),
        ("/etc/apt/sources.list.d/n.list", f"deb [signed-by=/k.gpg] {place}/$(ARCH) /"),
    ]
    assert named_elsewhere(ours, theirs, "amd64") == "/etc/apt/sources.list.d/n.list"
    assert named_elsewhere(ours, theirs[:1], "amd64") == ""
    assert named_elsewhere(ours, [(ours.sources, f"URIs: {ours.uri}")], "amd64") == ""


def test_a_key_is_known_by_its_fingerprint_armored_or_not() -> None:
    assert fingerprints(KEY.encode()) == [FINGERPRINT]
    assert fingerprints(binary(KEY.encode())) == [FINGERPRINT]
    assert armored(KEY.encode()) == KEY
    assert armored(binary(KEY.encode())) == KEY


def test_two_keys_in_one_file_are_two() -> None:
    assert fingerprints(binary(KEY.encode()) * 2) == [FINGERPRINT] * 2


@pytest.mark.parametrize("junk", [b"", b"<html>404</html>", b"\x99", base64.b64encode(b"x" * 9)])
def test_what_is_no_key_is_an_error(junk: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|packet"):
        fingerprints(junk)
