"""What hosts call the image."""

from __future__ import annotations


def local_tag(reference: str) -> str:
    """The name under which hosts keep what was pulled as NAME@sha256:…: NAME:sha256-….

    A host that got it from another host knows no registry's digest of it, and Docker gives it
    none: a name made of the digest is one that every host can have.
    """
    name, _, digest = reference.partition("@")
    if not digest:
        return reference
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}:{digest.replace(':', '-')}"
