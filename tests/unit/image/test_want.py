"""Which layers travel: what hosts lack as a chain, less what they have in other images."""

from __future__ import annotations

from vllm_cluster.image.seen import Image as Has
from vllm_cluster.image.seen import Seen
from vllm_cluster.image.want import Image, cargo, first_missing, seeds

LAYERS = ("sha256:a", "sha256:b", "sha256:c", "sha256:d")
WANTED = Image("sha256:" + "1" * 64, LAYERS, ("made:1",))


def host(*images: tuple[str, ...]) -> Seen:
    return Seen(images=tuple(Has(f"sha256:{n}", 1, layers) for n, layers in enumerate(images)))


def test_a_layer_counts_with_all_beneath_it() -> None:
    assert first_missing(LAYERS, host()) == 0
    assert first_missing(LAYERS, host(LAYERS[:2], ("sha256:x", *LAYERS[1:]))) == 2
    assert first_missing(LAYERS, host(LAYERS)) == 4


def test_what_the_neediest_lacks_travels() -> None:
    load = cargo(WANTED, [host(LAYERS[:3]), host(LAYERS[:1]), host(LAYERS[:2])])
    assert (load.first, load.layers) == (1, LAYERS[1:])
    assert load.name == ("images/1111111111111111", "from-1")


def test_a_layer_that_stands_twice_travels_once() -> None:
    twice = Image(WANTED.id, ("sha256:a", "sha256:e", "sha256:b", "sha256:e"), ())
    assert cargo(twice, [host()]).layers == ("sha256:a", "sha256:e", "sha256:b")


def test_a_host_takes_layers_from_as_few_of_its_images_as_do() -> None:
    seen = host(("sha256:x", "sha256:b"), ("sha256:y", "sha256:b", "sha256:c"), ("sha256:z",))
    assert seeds(LAYERS, seen) == {"sha256:1": ["sha256:b", "sha256:c"]}
    assert seeds(LAYERS, host()) == {}
    assert seeds(LAYERS, host(("sha256:a", "sha256:b"), ("sha256:d",))) == {
        "sha256:0": ["sha256:a", "sha256:b"], "sha256:1": ["sha256:d"],
    }  # fmt: skip
