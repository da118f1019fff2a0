"""Command lines of `vllm serve`: what is wrong, where, and what to write."""

import pytest

from vllm_cluster.plan.flags import FlagProblem, Kind, table

VLLM = table("vllm", "0.33.0")


def only(*args: str, version: str = "0.33.0") -> FlagProblem:
    """The one problem of a command line after a model."""
    problems = table("vllm", version).check(["org/model", *args])
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    "args",
    [
        ["--tensor-parallel-size", "4", "--pipeline-parallel-size=2"],
        ["--tensor_parallel_size", "4", "--max_model_len=8k"],
        ["-tp", "4", "-pp=2", "-n2", "-r", "0"],
        ["--max-model-len", "auto", "--max-num-batched-tokens", "16K"],
        ["--max-model-len", "-1"],
        ["--compilation-config", '{"mode":2,"backend":"eager"}'],
        ["--compilation-config.mode=2", "--compilation_config.backend", "eager"],
        ["-cc.pass_config.fuse_norm_quant", "true", "-cc.custom_ops+=a,b"],
        ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'],
        ["--speculative-config", '{"method":"ngram","num_speculative_tokens":2}'],
        ["-O3", "-O=2", "-O", "1"],
        ["--served-model-name", "a", "b", "--api-key", "k1", "k2"],
        ["--no-enable-prefix-caching", "--disable-log-requests", "--no_enable_log_requests"],
        ["--moe-backend", "Flashinfer-Cutlass"],
        ["--hf-overrides", '{"a": 1}', "--hf-overrides", "plain words"],
        ["--lora-modules", "sql=/models/sql", '{"name": "x", "path": "/models/x"}'],
        ["--hf-token", "--enforce-eager", "--hf-token", "abc"],
        ["--seed", "-3", "--allowed-origins", '["*"]', "--middleware", "a.b", "--middleware=c.d"],
        ["--max-log-len", "None", "--data-parallel-address", ""],
        ["--device-ids", "0,1", "--chat-template", "-has a space"],
    ],
)
def test_what_the_parser_takes_is_taken(args: list[str]) -> None:
    assert VLLM.check(["org/model", *args]) == []


def test_an_invention_is_answered_with_what_to_write_instead() -> None:
    problem = only("--ray-enabled")
    assert problem.kind is Kind.UNKNOWN
    assert problem.index == 1
    assert problem.nearest == ("--distributed-executor-backend",)
    assert "--distributed-executor-backend ray" in problem.sentence
    assert "vllm serve 0.33.0" in problem.sentence


def test_the_value_of_an_unknown_argument_is_not_a_second_problem() -> None:
    problem = only("--worker-port-min", "20000")
    assert "`ray start --min-worker-port`" in problem.sentence


def test_a_slip_is_answered_with_the_nearest_name() -> None:
    assert only("--tensor-paralel-size", "4").nearest[0] == "--tensor-parallel-size"
    assert only("--gpu-memory-utilisation=0.9").nearest[0] == "--gpu-memory-utilization"
    assert only("-max-model-len", "4096").nearest[0] == "--max-model-len"
    assert only("-tp4").nearest == ("-tp",)


def test_an_argument_of_ray_start_is_named_as_one() -> None:
    assert "`ray start`" in only("--object-store-memory", "1").sentence


def test_an_argument_of_other_releases_names_them() -> None:
    assert "0.32.0, 0.33.0" in only("--watermark-config", "{}", version="0.27.1").sentence


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1", "0.32.0"])
def test_request_logging_is_off_already_where_the_old_switch_is_gone(version: str) -> None:
    problem = only("--disable-log-requests", version=version)
    assert "--no-enable-log-requests" in problem.nearest


def test_abbreviations_are_refused_with_the_full_name() -> None:
    problem = only("--tensor-parallel-s=4")
    assert problem.kind is Kind.ABBREVIATION
    assert problem.nearest == ("--tensor-parallel-size",)
    several = only("--data-parallel-r", "1")
    assert {"--data-parallel-rank", "--data-parallel-rpc-port"} <= set(several.nearest)


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        (["--port"], Kind.MISSING_VALUE, "needs a value"),
        (["--port", "--headless"], Kind.MISSING_VALUE, "`--headless` is the next argument"),
        (["--dtype"], Kind.MISSING_VALUE, "bfloat16"),
        (["--served-model-name"], Kind.MISSING_VALUE, "needs a value"),
        (["--compilation-config.mode"], Kind.MISSING_VALUE, "needs a value"),
        (["--enforce-eager=1"], Kind.UNEXPECTED_VALUE, "--no-enforce-eager"),
        (["--headless=true"], Kind.UNEXPECTED_VALUE, "nothing otherwise"),
        (["--enforce-eager", "true"], Kind.STRAY_WORD, "takes no further value"),
        (["--dtype", "float17"], Kind.BAD_CHOICE, "bfloat16"),
        (["--tensor-parallel-size", "four"], Kind.NOT_A_NUMBER, "whole number"),
        (["--tensor-parallel-size", "2.0"], Kind.NOT_A_NUMBER, "whole number"),
        (["--gpu-memory-utilization", "90%"], Kind.NOT_A_NUMBER, "a number"),
        (["--max-model-len", "1.5K"], Kind.NOT_A_NUMBER, "4k (4000)"),
        (["--max-model-len", "8kb"], Kind.NOT_A_NUMBER, "4K (4096)"),
        (["--speculative-config", "{method: ngram}"], Kind.NOT_JSON, "JSON"),
        (["--compilation-config", "3"], Kind.NOT_JSON, "object"),
        (["--compilation-config", '{"mod": 2}'], Kind.UNKNOWN_KEY, "nearest: mode"),
        (["--compilation-config.pass_config.x", "1"], Kind.UNKNOWN_KEY, "pass_config.x"),
        (["--tensor-parallel-size.x", "1"], Kind.BAD_VALUE, "not JSON"),
        (["--lora-modules", '{"path": "/x"}'], Kind.BAD_VALUE, "name=path"),
        (["--help"], Kind.DOES_NOT_SERVE, "ends"),
        (["--help=all"], Kind.DOES_NOT_SERVE, "ends"),
        (["--config", "serve.yaml"], Kind.NOT_READ, "Write them out"),
        (["another"], Kind.STRAY_WORD, "belongs to no argument"),
    ],
)
def test_each_fault_gets_its_kind_and_the_way_out(args: list[str], kind: Kind, words: str) -> None:
    problem = only(*args)
    assert problem.kind is kind
    assert words in problem.sentence


def test_every_fault_is_reported_at_its_place() -> None:
    problems = VLLM.check(["m", "--ray", "--port", "x", "-tp", "2", "--task=embed", "--seed"])
    assert [(each.index, each.argument) for each in problems] == [
        (1, "--ray"),
        (2, "--port"),
        (6, "--task"),
        (7, "--seed"),
    ]


def test_arguments_that_follow_the_model_may_not_name_one() -> None:
    assert VLLM.check(["--port", "8000"], words=0) == []
    [problem] = VLLM.check(["org/model", "--port", "8000"], words=0)
    assert problem.kind is Kind.STRAY_WORD


def test_the_model_comes_first_when_it_is_given_a_name() -> None:
    [problem] = VLLM.check(["--served-model-name", "a", "-tp", "2"])
    assert problem.index == 0
    assert "first word" in problem.sentence


def test_values_are_read_as_the_parser_reads_them() -> None:
    args = ["m", "-tp", "2", "--max_model_len", "8k", "--no-enable-prefix-caching", "-cc.mode=2"]
    args += ["-cc.custom_ops+", "a,b", "--middleware", "x", "--middleware", "y", "-tp=4"]
    assert VLLM.values(args) == {
        "tensor_parallel_size": 4,
        "max_model_len": 8000,
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 2, "custom_ops": ["a", "b"]},
        "middleware": ["x", "y"],
    }
