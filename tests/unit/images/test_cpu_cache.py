"""The image's cache: found again, never half there, cleaned of what was replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from images.cpu import build, recipe
from images.progress import Progress


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the image of today's recipe, an old one, and a build that was cut off."""
    monkeypatch.setattr(recipe, "IMAGE_CACHE", tmp_path)
    for name in (recipe.image_key(), "0123456789abcdef"):
        (tmp_path / name / "rootfs/etc").mkdir(parents=True)
        (tmp_path / name / "image.json").write_text(json.dumps({"id": name}))
    (tmp_path / "fedcba9876543210.partial/rootfs").mkdir(parents=True)
    (tmp_path / "layers").mkdir()
    for key in (recipe.environment_key(), "0123456789abcdef"):
        for suffix in ("tar", "json"):
            (tmp_path / "layers" / f"environment-{key}.{suffix}").touch()
    (tmp_path / "current").symlink_to("0123456789abcdef")
    return tmp_path


def test_an_image_that_is_there_is_not_built_again(cache: Path) -> None:
    described = build.build(Progress())
    assert described == {"id": recipe.image_key()}
    assert (cache / "current").readlink() == Path(recipe.image_key())


def test_cleaning_leaves_the_current_image_and_the_layers_of_the_recipe(cache: Path) -> None:
    build.build(Progress())
    removed = {path.name for path in build.clean()}
    old = "environment-0123456789abcdef"
    assert removed == {
        "0123456789abcdef", "fedcba9876543210.partial", f"{old}.tar", f"{old}.json",
    }  # fmt: skip
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        [recipe.image_key(), "current", "layers", "lock"]
    )
    kept = f"environment-{recipe.environment_key()}"
    assert sorted(path.name for path in (cache / "layers").iterdir()) == [
        f"{kept}.json",
        f"{kept}.tar",
    ]
    assert json.loads((cache / "current/image.json").read_text()) == {"id": recipe.image_key()}


def test_a_machine_of_another_kind_is_refused_before_anything_is_made(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(cache.rglob("*"))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(recipe.RecipeError, match="x86_64"):
        build.build(Progress())
    assert sorted(cache.rglob("*")) == before
