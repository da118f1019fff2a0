"""The model: what it is called, where it comes from, where the hosts read it from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from vllm_cluster.spec.types import AbsolutePath, HostName, RelativePath

SOURCE_KINDS = ("here", "hub", "host", "nfs")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSource(_Section):
    """One place where the model can be had. Exactly one of `here`, `hub`, `host`, `nfs`."""

    here: str | None = Field(
        None, min_length=1, description="a directory on the machine that runs pyinfra"
    )
    hub: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="a repository of a hub, ORG/NAME; model.revision says which commit",
    )
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$",
        description="the address of another hub, such as https://hub.example.com",
    )
    host: HostName | None = Field(
        None, description="a host of this cluster that has the model in `directory`"
    )
    directory: AbsolutePath | None = Field(
        None, description="an absolute path on `host`: plain files, or a hub's cache"
    )
    nfs: AbsolutePath | None = Field(
        None, description="a directory beneath a mount point of storage.nfs"
    )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of SOURCE_KINDS that are given; one in a sound description."""
        return tuple(kind for kind in SOURCE_KINDS if getattr(self, kind) is not None)


class Model(_Section):
    """The weights that are served."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", description="the name that API clients use"
    )
    source: str | None = Field(
        None, min_length=1, description="a directory on this machine with the model"
    )
    sources: list[ModelSource] | None = Field(
        None,
        min_length=1,
        description="a list in order of preference: {here: DIRECTORY}, {hub: ORG/NAME}, "
        "{host: NAME, directory: DIRECTORY} or {nfs: DIRECTORY} each",
    )
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = Field(
        None,
        description="the hub's commit (40 hex digits, in quotes where they are digits alone), or a "
        "label of your own of letters, digits, '.', '_', '-'",
    )
    directory: RelativePath = Field(
        description="where the model lies beneath weights.directory: a relative path "
        "of letters, digits and ._+@=- without .."
    )

    @property
    def ordered(self) -> tuple[ModelSource, ...]:
        """The sources in order of preference; `source` is one of this machine."""
        if self.source is not None:
            return (ModelSource(here=self.source),)
        return tuple(self.sources or ())

    @property
    def here(self) -> str | None:
        """The first directory of this machine among the sources; None without one."""
        return next((source.here for source in self.ordered if source.here is not None), None)


class Weights(_Section):
    """Where models lie on every host."""

    directory: AbsolutePath = Field(
        "/var/lib/vllm-cluster/models", description="an absolute path, on the hosts' fast disk"
    )
    storage: Literal["nvme", "nfs", "shared"] = Field(
        "nvme",
        description="nvme (a verified copy on every host's own disk), nfs (read from a mount of "
        "storage.nfs) or shared (read from a file system that you mount on every host)",
    )
    keep: int = Field(
        2,
        strict=True,
        ge=1,
        le=100,
        description="revisions of a model that stay on a host, the served one among them, 1 or "
        "more; one that a unit uses always stays",
    )
    limit_mbit: float | None = Field(
        None, gt=0, le=1e7, description="Mbit/s that a host may fetch weights at, such as 5000"
    )
