"""What a run needs of the machine that it starts from."""

from __future__ import annotations

import shutil

from vllm_cluster.control.context import Context
from vllm_cluster.spec import RefusedError


def refuse_missing(known: Context) -> None:
    """A model that lies here is sent by rsync, and a deploy would find that out half way.

    Raises RefusedError where rsync is missing and the model's first source is a directory of this
    machine that is there. Other sources do without it.
    """
    description = known.cluster.description
    first = next(iter(description.model.ordered), None)
    copied = description.weights.storage == "nvme" and first is not None and first.here is not None
    if not copied or known.source is None or shutil.which("rsync") is not None:
        return
    key = "source" if description.model.source is not None else "sources"
    found = f"{known.source}, and this machine has no rsync, which sends it to the first host"
    problem = known.cluster.problem(
        "model", key, found=found, accepted="a machine with rsync: apt-get install rsync"
    )
    raise RefusedError(known.cluster.file, [problem])
