"""The name under which hosts keep an image that one of them pulled."""

from __future__ import annotations

import pytest

from vllm_cluster.plan.image import local_tag

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        ("vllm-ray", "vllm-ray"),
        ("made:1", "made:1"),
        ("registry.example.com/vllm-ray", "registry.example.com/vllm-ray"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b"),
        ("127.0.0.1:5000/a/b:1.2", "127.0.0.1:5000/a/b"),
    ],
)
def test_it_is_made_of_the_digest(reference: str, tag: str) -> None:
    assert local_tag(f"{reference}@sha256:{DIGEST}") == f"{tag.removesuffix(':1')}:sha256-{DIGEST}"


def test_a_name_without_digest_stays() -> None:
    assert local_tag("vllm-cluster/cpu:1") == "vllm-cluster/cpu:1"
