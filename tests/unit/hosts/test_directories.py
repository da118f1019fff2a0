"""Directories as they shall be, and those that are somebody else's."""

from __future__ import annotations

import pytest

from vllm_cluster.facts.files import FileState
from vllm_cluster.operations.files import Directory, _difference


@pytest.mark.parametrize(("theirs", "said"), [(True, ""), (False, "mode is 2775, not 755")])
def test_a_directory_of_a_teams_keeps_its_owner_and_mode(*, theirs: bool, said: str) -> None:
    found = FileState("directory", "2775", "root", "ml", "", None)
    assert _difference(Directory(theirs=theirs), found).startswith(said)
    assert bool(_difference(Directory(theirs=theirs), found)) is not theirs
    absent = FileState("absent", "", "", "", "", None)
    assert _difference(Directory(theirs=theirs), absent) == "directory is missing"
