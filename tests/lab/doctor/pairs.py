"""Pairs of faults that are put in together: one of each plane with one of another."""

PAIRS: list[tuple[str, str]] = [
    ("hosts-entry", "secret-readable"),
    ("second-address", "model-byte"),
    ("mtu", "leftover"),
    ("gcs-dropped", "wrong-card-file"),
    ("disk-full", "not-reloaded"),
    ("read-only", "published"),
    ("firewall-gone", "own-loopback"),
    ("policy-drop", "disabled"),
    ("data-plane-dropped", "hosts-gone"),
    ("gave-up", "hosts-entry"),
    ("api-key-gone", "model-file"),
    ("firewall-rule", "second-card"),
    ("secret-readable", "model-short"),
    ("leftover", "api-key-other"),
    ("host-key", "hosts-entry"),
    ("docker-masked", "model-gone"),
    ("token-gone", "mtu"),
    ("masked", "secret-readable"),
    ("vllm-stopped", "gcs-dropped"),
    ("power-cut", "hosts-entry"),
]
# Where real Ray and vLLM run.
REAL_PAIRS: list[tuple[str, str]] = [("rejected", "token-gone")]
