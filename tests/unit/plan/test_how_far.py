"""Which line of a start's log says how far it is."""

from __future__ import annotations

from vllm_cluster.plan.how_far import how_far

_SERVER = "(APIServer pid=435) "
_START = f"""waiting for the Ray head
{_SERVER}INFO 11-30 19:11:41 [model.py:733] Resolved architecture: LlamaForCausalLM
{_SERVER}INFO: 10.0.0.9:5 - "POST /v1/completions HTTP/1.1" 503 Service Unavailable
no completion yet: <urlopen error [Errno 111] Connection refused>
"""


def test_it_is_the_last_line_that_is_news_without_its_stamp() -> None:
    assert how_far(_START) == "Resolved architecture: LlamaForCausalLM"
    assert how_far("waiting for 2 GPUs; Ray shows: 1\n") == "waiting for 2 GPUs; Ray shows: 1"
    assert how_far("") == ""


def test_a_bar_of_progress_is_told_as_it_is_now() -> None:
    bar = "\x1b[36m(RayWorkerProc pid=9)\x1b[0m Loading shards:   0%\rLoading shards:  40%\r"
    assert how_far(f"{_START}{bar}\n") == "Loading shards:  40%"


def test_an_emblem_source_and_what_only_debugs_are_no_news() -> None:
    dull = f'{_SERVER}INFO 11-30 19:11:40 [utils.py:1] \u2588  \u2588\n{_SERVER}  File "x.py"\n'
    debug = f"{_SERVER}DEBUG 11-30 19:11:41 [x.py:2] poll\n"
    assert how_far(f"gets ready\n{dull}{debug}") == "gets ready"


def test_a_warning_is_not_what_a_start_is_at() -> None:
    limit = f"{_SERVER}WARNING 11-30 19:11:41 [utils.py:9] Found ulimit of 16384 and failed to\n"
    triton = "(Worker pid=5) W1130 19:11:42.600000 504 torch/triton.py:53] Triton not available\n"
    assert how_far(f"gets ready\n{limit}{triton}") == "gets ready"
