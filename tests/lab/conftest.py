"""One cluster of stand-ins, deployed once, for all tests that need no model and no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import standin
from tests.lab.harness import ROOT, Cluster, describe
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

STANDIN_LAB = lab_name("t-standin")


def with_standin(folder: Path, lab: Lab, edit: Callable[[str], str] = str) -> Cluster:
    """A description for `lab` in `folder` whose image and model are stand-ins."""
    folder.mkdir(parents=True, exist_ok=True)
    image, model = standin.write(lab, folder / "image.tar"), standin.model(folder / "model")

    def stand_in(text: str) -> str:
        text = text.replace(f"{ROOT}/.cache/image/current/image.tar", str(image))
        return edit(text.replace(f"{ROOT}/.cache/model/tiny", str(model)))

    return describe(lab, folder, stand_in)


@contextmanager
def deployed(name: str, folder: Path) -> Iterator[Cluster]:
    """Two hosts of that lab at the end of deploys/cluster.py; the lab is gone afterwards."""
    lab = Lab.up(2, name=name)
    try:
        made = with_standin(folder, lab)
        made.apply()
        yield made
    finally:
        lab.down()


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts brought to the end of deploys/cluster.py. A test leaves them as it found them."""
    with deployed(STANDIN_LAB, tmp_path_factory.mktemp("standins")) as made:
        yield made
