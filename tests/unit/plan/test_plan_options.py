"""Options of `vllm-cluster plan` that would be ignored, or make no sense, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vllm_cluster.commands.plan import command
from vllm_cluster.control.context import context
from vllm_cluster.spec import DescriptionError

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"


def plan(*options: str, file: Path = PROD) -> Result:
    return CliRunner().invoke(command, [str(file), *options])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "here", "--hub", "org/name"), "--model or --hub"),
        (("--what-if", "--svg", "map.svg"), "--svg draws one plan"),
        (("--hosts", "1,2"), "--hosts only with --what-if"),
        (("--kv-dtype", "fp8", "--gpus", "4"), "--kv-dtype, --gpus only with --what-if"),
    ],
)
def test_options_of_which_one_would_be_ignored_are_refused(
    options: tuple[str, ...], words: str
) -> None:
    ended = plan(*options)
    assert ended.exit_code == 2
    assert words in ended.output


@pytest.mark.parametrize(
    "options",
    [
        ("--requests", "inf"),
        ("--requests", "nan"),
        ("--gpus", "65"),
        ("--hosts", "100000"),
        ("--max-model-len", "0"),
    ],
)
def test_what_if_refuses_numbers_that_nobody_has(options: tuple[str, ...]) -> None:
    ended = plan("--what-if", *options)
    assert ended.exit_code == 2
    assert f"{options[0]} takes numbers above 0" in ended.output


def test_what_if_refuses_a_version_that_nobody_knows(tmp_path: Path) -> None:
    file = tmp_path / "prod.yaml"
    file.write_text(PROD.read_text().replace("vllm: 0.33.0", "vllm: 9.9.9"))
    ended = plan("--what-if", file=file)
    assert isinstance(ended.exception, DescriptionError)
    assert "image.vllm: found 9.9.9" in str(ended.exception)


def test_arguments_and_files_of_this_machine_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "prod.yaml"
    text = PROD.read_text().replace("max-model-len: 8192", "max-model-length: 8192")
    file.write_text(text.replace("/srv/models/", f"{tmp_path}/nowhere/"))
    with pytest.raises(DescriptionError) as told:
        context(file)
    keys = {problem.key for problem in told.value.problems}
    assert {"serve.args.max-model-length", "model.source", "ssh.key"} <= keys
    assert told.value.exit_code == 2
