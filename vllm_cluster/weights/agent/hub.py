"""Download a model from a Hugging Face hub at a pinned revision, with huggingface_hub.

The only module that needs more than the standard library: hosts have no huggingface_hub, the
serving image has. So `download` is run by that image's Python with the agent mounted into it, and
the token in a file mounted beside it (HF_TOKEN_PATH): never an argument, never an environment
value, nothing for `docker inspect` to show.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.layout import written_bytes
from vllm_cluster.weights.agent.scan import HIDDEN
from vllm_cluster.weights.agent.tree import BLOCK_BYTES

EXPECTED_SUFFIX = ".expected.json"


def download(
    repo: str, revision: str, target: Path, *, exclude: list[str], reserve_bytes: int, workers: int
) -> Path:
    """Fetch the files of `repo` at `revision` into `target`, resuming what is there.

    Returns the path of the list of expected files beside it. Raises WeightsError with one sentence:
    no library, no such repository or revision, no access, no room, a file that came wrong.
    """
    try:
        import huggingface_hub as hub  # noqa: PLC0415  (not on the hosts, see above)
    except ImportError as exc:
        raise WeightsError(f"this Python has no huggingface_hub: {exc}") from exc
    files, commit = published(hub, repo, revision)
    wanted = [f for f in files if not any(fnmatch(f["path"], pattern) for pattern in exclude)]
    if not wanted:
        raise WeightsError(f"{repo} at {revision} has no files beside the excluded ones")
    target.mkdir(parents=True, exist_ok=True)
    _check_room(target, wanted, reserve_bytes, repo)
    expected = target.with_name(target.name + EXPECTED_SUFFIX)
    listed = [{k: item[k] for k in ("path", "size", "sha256")} for item in wanted]
    expected.write_text(json.dumps({"commit": commit, "files": listed}, indent=1))
    try:
        hub.snapshot_download(
            repo,
            revision=commit,
            local_dir=target,
            allow_patterns=[f["path"] for f in wanted],
            max_workers=workers,
        )
    except Exception as exc:
        raise _in_words(exc, repo, revision) from exc
    for item in wanted:
        _check_small(target, item)
    return expected


def published(hub: Any, repo: str, revision: str) -> tuple[list[dict[str, Any]], str]:
    """Every file with size, SHA-256 (large files) or git blob hash (small ones); the commit."""
    try:
        info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
    except Exception as exc:
        raise _in_words(exc, repo, revision) from exc
    files = [
        {
            "path": item.rfilename,
            "size": item.lfs.size if item.lfs else item.size,
            "sha256": item.lfs.sha256 if item.lfs else None,
            "blob": item.blob_id,
        }
        for item in info.siblings or []
        if not any(part.startswith(HIDDEN) for part in item.rfilename.split("/"))
    ]
    return files, str(info.sha)


def _in_words(exc: Exception, repo: str, revision: str) -> WeightsError:
    """One sentence for what the library raised (huggingface_hub.errors)."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    names = {kind.__name__ for kind in type(exc).__mro__}
    if "GatedRepoError" in names:
        reason = (
            f"{repo} is gated: accept its terms at {endpoint}/{repo} and give that user's token"
        )
    elif "RevisionNotFoundError" in names:
        reason = f"{repo} has no revision {revision} at {endpoint}"
    elif "RepositoryNotFoundError" in names:
        reason = (
            f"{endpoint} has no repository {repo}, or it is private and the token does not open it"
        )
    elif isinstance(exc, OSError) and exc.errno is not None:
        reason = f"{repo}: {exc.strerror}"
    else:
        first = (str(exc).strip().splitlines() or [""])[0]
        reason = f"{repo} at {revision} from {endpoint}: {type(exc).__name__}: {first}"
    return WeightsError(reason)


def _check_room(target: Path, files: list[dict[str, Any]], reserve_bytes: int, repo: str) -> None:
    total = sum(int(item["size"]) for item in files)
    here = written_bytes(target)
    free = shutil.disk_usage(target).free
    if free < total - here + reserve_bytes:
        raise WeightsError(
            f"{repo} has {total / 2**30:.2f} GiB, {here / 2**30:.2f} are here and"
            f" {free / 2**30:.2f} GiB free, {reserve_bytes / 2**30:.2f} GiB are to stay free",
            file=str(target),
        )


def _check_small(target: Path, item: dict[str, Any]) -> None:
    """Compare a file without a published SHA-256 with its git blob hash.

    Large files are checked against their SHA-256 when they are adopted, which reads them anyway.
    """
    path = target / str(item["path"])
    if item["sha256"] is not None or not item["blob"]:
        return
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as stream:
        while data := stream.read(BLOCK_BYTES):
            digest.update(data)
    if digest.hexdigest() != item["blob"]:
        path.unlink()
        raise WeightsError(
            "came damaged from the hub, was deleted; run again", file=str(item["path"])
        )
