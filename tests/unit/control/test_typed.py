"""Command lines that are printed are right where the program was started."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import vllm_cluster
from tests.unit.doctor.here import description
from vllm_cluster.commands.rotate import command as rotate
from vllm_cluster.control.context import context
from vllm_cluster.control.typed import deploy_line, shown
from vllm_cluster.doctor.examine import case_of
from vllm_cluster.doctor.reach import Look

ROOT = Path(__file__).parents[3]


def there(line: str) -> tuple[Path, Path]:
    """The files that a line names, from the current directory."""
    inventory, deploy = shlex.split(line)[-2:]
    return Path(inventory).resolve(), Path(deploy).resolve()


def test_in_the_projects_root_paths_are_the_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    line = deploy_line(ROOT / "inventories" / "prod.yaml")
    assert line == "pyinfra -y inventories/prod.py deploys/cluster.py"
    assert there(line)[1].is_file()


@pytest.mark.parametrize("where", ["site", "site/deeper/still", "elsewhere", "."])
def test_elsewhere_both_paths_lead_to_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / where)
    file = tmp_path / "site" / "u2.yaml"
    for named in (file, Path(os.path.relpath(file))):
        assert there(deploy_line(named)) == (
            tmp_path / "site" / "u2.py", ROOT / "deploys" / "cluster.py"
        )  # fmt: skip


def test_an_installed_package_brings_the_deploy_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "vllm_cluster"
    (package / "_deploys").mkdir(parents=True)
    monkeypatch.setattr(vllm_cluster, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    line = deploy_line(Path("u2.yaml"), "--fail-percent", "0")
    deploy = "site-packages/vllm_cluster/_deploys/cluster.py"
    assert line == f"pyinfra -y --fail-percent 0 u2.py {deploy}"


def test_a_path_is_relative_where_that_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert shown(tmp_path / "a" / "u2.yaml") == "u2.yaml"
    assert shown(tmp_path / "b" / "u2.yaml") == "../b/u2.yaml"
    assert shown(Path("/etc/u2.yaml")) == "/etc/u2.yaml"


def test_a_path_with_a_space_is_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "'my site/u2.py'" in deploy_line(tmp_path / "my site" / "u2.yaml")


def test_doctor_and_rotate_print_such_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    file = description(site)
    monkeypatch.chdir(tmp_path)
    expected = site / "lab.py", ROOT / "deploys" / "cluster.py"
    case = case_of(context(file, make_secrets=False), Look({}, {}, {}))
    assert there(case.deploy) == expected
    assert case.description == "site/lab.yaml"
    said = CliRunner().invoke(rotate, [str(file)]).output.splitlines()[-1]
    assert there(said.split("`")[1]) == expected
