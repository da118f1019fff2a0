"""Pairs of faults that are put in together: one of each plane with one of another."""

PAIRS: list[tuple[str, str]] = [
    ("hosts-entry", "secret-readable"),
    ("mtu", "leftover"),
    ("disk-full", "not-reloaded"),
    ("read-only", "published"),
    ("policy-drop", "disabled"),
    ("second-address", "firewall-gone"),
    ("firewall-rule", "second-card"),
    ("host-key", "hosts-entry"),
    ("vllm-stopped", "gcs-dropped"),
    ("power-cut", "hosts-entry"),
    ("gave-up", "secret-readable"),
    ("second-address", "model-byte"),
    ("gcs-dropped", "wrong-card-file"),
    ("api-key-gone", "model-file"),
    ("docker-masked", "model-gone"),
    ("masked", "secret-readable"),
]
# Where real Ray and vLLM run.
REAL_PAIRS: list[tuple[str, str]] = [("rejected", "token-gone")]
