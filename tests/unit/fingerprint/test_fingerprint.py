"""Fingerprints: equal for equal hosts, and a difference names what differs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyinfra.api.exceptions import FactProcessError

from vllm_cluster.facts.fingerprint import parse, script
from vllm_cluster.plan.fingerprint import differences, digest

_fingerprints = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5)


def test_lines_become_keys_and_values() -> None:
    lines = [
        "package\trsync\t3.2.7-1",
        "file\t/etc/a b\t644 root:root abc",
        "image\tsha256:1\tthere",
    ]
    assert parse(lines) == {
        "package rsync": "3.2.7-1",
        "file /etc/a b": "644 root:root abc",
        "image sha256:1": "there",
    }


def test_anything_else_fails_the_fact() -> None:
    with pytest.raises(FactProcessError, match="find: no such"):
        parse(["find: no such file"])


def test_a_difference_names_key_and_both_values() -> None:
    first = {"package a": "1", "package b": "1", "file /x": "644"}
    second = {"package a": "2", "package c": "1", "file /x": "644"}
    assert differences(first, second) == [
        "package a: 1, then 2",
        "package b: 1, then nothing",
        "package c: nothing, then 1",
    ]


@given(_fingerprints, _fingerprints)
def test_equal_digests_mean_no_difference(first: dict[str, str], second: dict[str, str]) -> None:
    assert (digest(first) == digest(second)) == (differences(first, second) == [])


def of_tree(root: Path) -> dict[str, str]:
    """The files of a fingerprint whose /etc is that of `root`."""
    text = script("/nonexistent").replace("find /etc ", f"find {root}/etc ")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    found = parse(done.stdout.splitlines())
    return {k.replace(str(root), ""): v for k, v in found.items() if k.startswith(f"file {root}")}


def test_identifiers_that_an_installer_makes_up_are_no_difference(tmp_path: Path) -> None:
    lines = {
        "old": "UUID=6d1f7f5e-3a52-4c3a-9a53-0f3f4f1b7c11 / ext4\nUUID=2F5A-11C0 /boot/efi vfat\n",
        "new": "UUID=0b9d1c52-77aa-4a52-8a53-5f3f4f1b7c99 / ext4\nUUID=99AA-00FF /boot/efi vfat\n",
        "other": "UUID=0b9d1c52-77aa-4a52-8a53-5f3f4f1b7c99 / xfs\nUUID=99AA-00FF /boot/efi vfat\n",
    }
    found = {}
    for name, text in lines.items():
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/fstab").write_text(text)
        (tmp_path / name / "etc/hosts").write_text(text)
        found[name] = of_tree(tmp_path / name)
    assert [line.split(":")[0] for line in differences(found["old"], found["new"])] == [
        "file /etc/hosts"
    ]
    assert len(differences(found["new"], found["other"])) == 2


def test_the_script_asks_for_no_secret_and_no_key_of_the_host() -> None:
    text = script("/srv/models")
    for own in ("/etc/ssh/ssh_host_*", "/etc/shadow*", "/etc/machine-id"):
        assert own in text
    assert 'case $path in "$secrets"/*) sum=secret' in text
