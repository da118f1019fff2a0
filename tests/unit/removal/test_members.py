"""Who belongs to the cluster, and who left it."""

from vllm_cluster.plan.members import Members, after, read

THREE = {"node-a": "10.0.0.1", "node-b": "10.0.0.2", "node-c": "10.0.0.3"}


def without(name: str) -> dict[str, str]:
    return {n: a for n, a in THREE.items() if n != name}


def test_who_is_not_described_any_more_has_left() -> None:
    first = after("", "lab", THREE)
    assert first.left == {}
    second = after(first.text(), "lab", without("node-c"))
    assert second.left == {"node-c": "10.0.0.3"}
    third = after(second.text(), "lab", without("node-c"))
    assert third == second, "until it was cleaned"


def test_who_comes_back_by_name_or_address_has_not_left() -> None:
    left = after(after("", "lab", THREE).text(), "lab", without("node-c")).text()
    assert after(left, "lab", THREE).left == {}
    renamed = {**without("node-c"), "node-x": "10.0.0.3"}
    assert after(left, "lab", renamed).left == {}


def test_who_was_cleaned_is_forgotten() -> None:
    left = after(after("", "lab", THREE).text(), "lab", without("node-c"))
    clean = left.without(["node-c"])
    assert read(clean.text()) == clean
    assert after(clean.text(), "lab", without("node-c")).left == {}


def test_a_file_that_says_nothing_is_begun_anew() -> None:
    for text in ("", "{}", "[1]", '{"hosts": 3}', "\x00"):
        assert read(text) is None
        assert after(text, "lab", THREE) == Members("lab", THREE)


def test_the_members_of_another_cluster_are_forgotten() -> None:
    moved = {"node-c": "10.0.0.3", "node-d": "10.0.0.4"}
    other = after(after("", "other", THREE).text(), "other", THREE)
    assert after(other.text(), "lab", moved) == Members("lab", moved)


def test_a_cluster_with_a_new_name_still_knows_who_left() -> None:
    old = after(after("", "old", THREE).text(), "old", without("node-c"))
    new = after(old.text(), "lab", without("node-c"))
    assert (new.cluster, new.left) == ("lab", {"node-c": "10.0.0.3"})
