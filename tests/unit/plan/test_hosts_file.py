"""/etc/hosts keeps what others wrote, and loses the host's own name on loopback."""

from vllm_cluster.plan.hosts_file import BEGIN, END, hosts_text

ADDRESSES = {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}
BLOCK = f"{BEGIN}\n10.0.0.1\tnode-a\n10.0.0.2\tnode-b\n{END}\n"


def text(old: str) -> str:
    return hosts_text(old, {"node-a"}, ADDRESSES)


def test_the_hosts_own_name_leaves_loopback() -> None:
    old = "127.0.0.1\tlocalhost\n127.0.1.1\tnode-a.example.com node-a\n"
    assert text(old) == "127.0.0.1\tlocalhost\n127.0.1.1\tnode-a.example.com\n" + BLOCK
    assert hosts_text(old, {"node-a", "node-a.example.com"}, ADDRESSES) == (
        "127.0.0.1\tlocalhost\n" + BLOCK
    )


def test_localhost_and_the_comments_stay() -> None:
    old = "# mine\n127.0.0.1 localhost node-a # keep\n::1 localhost ip6-localhost\n"
    assert text(old) == (
        "# mine\n127.0.0.1\tlocalhost  # keep\n::1 localhost ip6-localhost\n" + BLOCK
    )


def test_lines_of_others_stay_as_they_are() -> None:
    old = "127.0.0.1 localhost\n10.9.9.9   printer  # third floor\n"
    assert text(old) == old + BLOCK


def test_a_second_time_changes_nothing() -> None:
    once = text("127.0.0.1 localhost\n127.0.1.1 node-a\n")
    assert text(once) == once


def test_an_old_block_is_replaced_and_the_rest_kept() -> None:
    old = f"127.0.0.1 localhost\n{BEGIN}\n9.9.9.9\tgone\n{END}\n10.9.9.9 printer\n"
    assert text(old) == "127.0.0.1 localhost\n10.9.9.9 printer\n" + BLOCK


def test_an_empty_file_gets_the_block() -> None:
    assert text("") == BLOCK
