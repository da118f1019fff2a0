"""Where secrets come from, how new ones are made, and what a refusal must not show."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from vllm_cluster.commands.rotate import command
from vllm_cluster.control import secrets
from vllm_cluster.spec import Cluster, DescriptionError, load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
DECLARED = "  ray_token: generate\n  api_key: generate\n"
VALUE = "s3cret-value-of-a-test"


def cluster(folder: Path, text: str = DECLARED) -> Cluster:
    file = folder / "prod.yaml"
    prod = PROD.read_text()
    assert DECLARED in prod
    file.write_text(prod.replace(DECLARED, text))
    return load(file)


def with_api_key(folder: Path, source: str) -> Cluster:
    return cluster(folder, f"  ray_token: generate\n  api_key: {source}\n")


def test_generated_secrets_are_long_kept_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        first = secrets.resolve(cluster(tmp_path))
    finally:
        os.umask(old)
    assert secrets.resolve(cluster(tmp_path)) == first
    assert len(first["ray_token"]) == 64
    assert first["ray_token"] != first["api_key"]
    folder = tmp_path / ".secrets" / "llama-70b"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["api_key", "ray_token"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_runs_that_begin_together_come_to_one_value(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    with ThreadPoolExecutor(max_workers=16) as pool:
        found = list(pool.map(lambda _: secrets.resolve(made)["api_key"], range(64)))
    assert len(set(found)) == 1


def test_a_secret_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", VALUE)
    assert secrets.resolve(with_api_key(tmp_path, "{env: THE_KEY}"))["api_key"] == VALUE


def test_a_secret_comes_from_a_file_beside_the_description(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(f"{VALUE}\n")
    assert secrets.resolve(with_api_key(tmp_path, "{file: key}"))["api_key"] == VALUE


def test_a_secret_comes_from_a_command(tmp_path: Path) -> None:
    source = f"{{command: 'printf %s {VALUE}'}}"
    assert secrets.resolve(with_api_key(tmp_path, source))["api_key"] == VALUE


def test_no_api_key_is_no_value(tmp_path: Path) -> None:
    assert set(secrets.resolve(with_api_key(tmp_path, "none"))) == {"ray_token"}


# How the source is written, what is found; the refusal names the key and never the value.
UNUSABLE = [
    ("{env: NOT_SET_ANYWHERE}", "no variable NOT_SET_ANYWHERE"),
    ("{file: missing}", "No such file"),
    ("{file: open}", "every user of this machine can read"),
    ("{file: spaced}", "an unusable value"),
    ("{file: empty}", "an unusable value"),
    (f"{{command: 'echo {VALUE}; echo wrong vault >&2; exit 3'}}", "ended with 3: wrong vault"),
]


@pytest.mark.parametrize(("source", "found"), UNUSABLE)
def test_an_unusable_source_is_refused_without_its_value(
    tmp_path: Path, source: str, found: str
) -> None:
    for name, text, mode in (
        ("open", VALUE, 0o644), ("spaced", f"{VALUE} x", 0o600), ("empty", "", 0o600),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    made = with_api_key(tmp_path, source)
    with pytest.raises(DescriptionError) as caught:
        secrets.resolve(made)
    words = caught.value.text()
    assert found in words
    assert "secrets.api_key" in words
    assert VALUE not in words.replace(f"`echo {VALUE};", "")


def test_the_hubs_token_is_read_only_when_asked_for(tmp_path: Path) -> None:
    made = cluster(tmp_path, f"{DECLARED}  hub_token: {{env: NOT_SET_ANYWHERE}}\n")
    assert set(secrets.resolve(made)) == {"ray_token", "api_key"}
    with pytest.raises(DescriptionError, match="hub_token"):
        secrets.hub_token(made)


def test_the_hubs_token_comes_from_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB", VALUE)
    assert secrets.hub_token(cluster(tmp_path, f"{DECLARED}  hub_token: {{env: HUB}}\n")) == VALUE
    assert secrets.hub_token(cluster(tmp_path)) is None


def test_rotation_makes_a_new_value_of_the_named_secret_alone(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    old = secrets.resolve(made)
    done = CliRunner().invoke(command, [str(made.file), "api-key"])
    assert done.exit_code == 0, done.output
    new = secrets.resolve(made)
    assert new["ray_token"] == old["ray_token"]
    assert new["api_key"] != old["api_key"]
    assert len(new["api_key"]) == 64
    for value in (*old.values(), *new.values()):
        assert value not in done.output
    assert "deploys/cluster.py" in done.output


def test_rotation_without_names_takes_every_generated_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", VALUE)
    made = with_api_key(tmp_path, "{env: THE_KEY}")
    old = secrets.resolve(made)
    assert CliRunner().invoke(command, [str(made.file)]).exit_code == 0
    new = secrets.resolve(made)
    assert new["ray_token"] != old["ray_token"]
    assert new["api_key"] == VALUE


def test_a_secret_from_elsewhere_is_not_rotated_here(tmp_path: Path) -> None:
    made = with_api_key(tmp_path, "{env: THE_KEY}")
    with pytest.raises(DescriptionError, match="change it there and deploy"):
        secrets.rotate(made, ("ray_token", "api_key"))
    assert not (tmp_path / ".secrets").exists()


def test_a_file_where_secrets_are_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / ".secrets").write_text("somebody's notes")
    with pytest.raises(DescriptionError, match=r"\.secrets.*a directory of yours") as told:
        secrets.resolve(cluster(tmp_path))
    assert [problem.key for problem in told.value.problems] == [
        "secrets.ray_token",
        "secrets.api_key",
    ]
    assert (tmp_path / ".secrets").read_text() == "somebody's notes"


def test_a_rotation_that_cannot_write_is_told(tmp_path: Path) -> None:
    described = cluster(tmp_path)
    (tmp_path / ".secrets").write_text("somebody's notes")
    with pytest.raises(DescriptionError, match=r"\.secrets"):
        secrets.rotate(described, ("api_key",))
