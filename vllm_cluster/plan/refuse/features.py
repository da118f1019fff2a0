"""Adapters, speculative decoding, and arguments that exclude or need each other."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
ARGS = "vllm/engine/arg_utils.py"
CLI = "vllm/entrypoints/common/cli_args.py"
SPECULATIVE = "vllm/config/speculative.py"
CONFIG = "vllm/config/vllm.py"


@BOOK.rule(
    "lora-cpu",
    "fewer LoRA adapters in host memory than on the GPU",
    "vllm/config/lora.py",
    "max_cpu_loras ({self.max_cpu_loras}) must be >= ",
)
def lora_cpu(request: ServeRequest) -> Problem | None:
    held = request.get("max_cpu_loras")
    loaded = request.get("max_loras") or 1
    if not request.get("enable_lora") or not held or held < 0 or held >= loaded:
        return None
    return Problem(
        f"`--max-cpu-loras {held}` is below --max-loras {loaded}.",
        "Leave out --max-cpu-loras, or set it at least as high.",
    )


@BOOK.rule(
    "lora-speculative",
    "LoRA with speculative decoding, and too few tokens a step",
    ARGS,
    "Consider increasing max_num_batched_tokens or ",
)
def lora_speculative(request: ServeRequest) -> Problem | None:
    drafted = request.part("speculative_config", "num_speculative_tokens")
    tokens = request.get("max_num_batched_tokens")
    requests = request.get("max_num_seqs")
    if not request.get("enable_lora") or not drafted or tokens is None or requests is None:
        return None
    needed = requests * (drafted + 1)
    if tokens >= needed:
        return None
    return Problem(
        f"With LoRA, {requests} requests of {drafted} drafted tokens need {needed} tokens a step, "
        f"and --max-num-batched-tokens is {tokens}.",
        f"Set --max-num-batched-tokens to {needed}, or draft fewer tokens.",
    )


@BOOK.rule(
    "speculative-method",
    "a method of speculative decoding that does not exist",
    SPECULATIVE,
    "SpeculativeMethod = Literal[",
)
def speculative_method(request: ServeRequest) -> Problem | None:
    method = request.part("speculative_config", "method")
    methods = request.limits.speculative_methods
    if method is None or method in methods or method == "[ngram]":
        return None
    return Problem(
        f"vLLM {request.version} has no method {method} of speculative decoding.",
        f"Take one of {', '.join(methods)}.",
    )


@BOOK.rule(
    "speculative-tokens",
    "speculative decoding of no tokens",
    SPECULATIVE,
    "Expected num_speculative_tokens to be greater ",
)
def speculative_tokens(request: ServeRequest) -> Problem | None:
    drafted = request.part("speculative_config", "num_speculative_tokens")
    if not isinstance(drafted, int) or drafted > 0:
        return None
    return Problem(
        f"num_speculative_tokens is {drafted}: nothing would be drafted.",
        "Set it to 1 or more, or leave out --speculative-config.",
    )


@BOOK.rule(
    "speculative-tp",
    "tensor_parallel_size in --speculative-config",
    SPECULATIVE,
    "'tensor_parallel_size' is not a valid argument in the ",
)
def speculative_tp(request: ServeRequest) -> Problem | None:
    if request.part("speculative_config", "tensor_parallel_size") is None:
        return None
    return Problem(
        "--speculative-config takes no tensor_parallel_size.",
        "Write draft_tensor_parallel_size there.",
    )


@BOOK.rule(
    "speculative-draft-tp",
    "a draft model over another number of GPUs than 1 or all",
    SPECULATIVE,
    "other value than 1 or target model tensor_parallel_size",
)
def speculative_draft_tp(request: ServeRequest) -> Problem | None:
    size = request.part("speculative_config", "draft_tensor_parallel_size")
    if size in (None, 1, request.tensor_parallel):
        return None
    return Problem(
        f"The draft model can be on 1 GPU or on {request.tensor_parallel}, not on {size}.",
        "Leave out draft_tensor_parallel_size.",
    )


@BOOK.rule(
    "speculative-ngram",
    "n-gram drafts whose shortest match is longer than the longest",
    SPECULATIVE,
    "be <= prompt_lookup_max={self.prompt_lookup_max}",
)
def speculative_ngram(request: ServeRequest) -> Problem | None:
    least = request.part("speculative_config", "prompt_lookup_min")
    most = request.part("speculative_config", "prompt_lookup_max")
    if request.part("speculative_config", "method") not in ("ngram", "[ngram]", "ngram_gpu"):
        return None
    if least is None or most is None or least <= most:
        return None
    return Problem(
        f"prompt_lookup_min {least} is above prompt_lookup_max {most}.",
        "Exchange them.",
    )


@BOOK.rule(
    "speculative-fast-prefill",
    "--kv-sharing-fast-prefill with a draft that needs the prompt's logits",
    CONFIG,
    "Fast prefill optimization for KV sharing is not ",
)
def speculative_fast_prefill(request: ServeRequest) -> Problem | None:
    method = request.part("speculative_config", "method")
    reading = ("eagle", "eagle3", "mtp", "dflash", "dspark")
    if not request.get("kv_sharing_fast_prefill") or method not in reading:
        return None
    return Problem(
        f"`--kv-sharing-fast-prefill` gives wrong logits for the prompt, which {method} reads.",
        "Leave out one of the two.",
    )


@BOOK.rule(
    "adaptive-pp",
    "adaptive verification of drafts with pipeline stages or LoRA",
    CONFIG,
    "Adaptive verification is not currently compatible ",
    since="0.32.0",
)
def adaptive_pp(request: ServeRequest) -> Problem | None:
    if not request.part("speculative_config", "enable_adaptive_verification"):
        return None
    if request.pipeline_parallel <= 1 and not request.get("enable_lora"):
        return None
    what = "LoRA" if request.get("enable_lora") else "pipeline stages"
    return Problem(
        f"enable_adaptive_verification does not work with {what}.",
        "Leave it out of --speculative-config.",
    )


@BOOK.rule(
    "speculative-metrics",
    "--per-request-spec-decode-metrics without speculative decoding",
    CONFIG,
    "--per-request-spec-decode-metrics requires speculative decoding ",
    since="0.32.0",
)
def speculative_metrics(request: ServeRequest) -> Problem | None:
    asked = request.get("per_request_spec_decode_metrics") or "none"
    drafts = any(request.get(name) for name in ("speculative_config", "spec_method", "spec_model"))
    if asked == "none" or drafts:
        return None
    return Problem(
        "`--per-request-spec-decode-metrics` measures drafts, and there are none.",
        "Leave it out, or add --speculative-config.",
    )


@BOOK.rule(
    "attention-twice",
    "the attention backend named in two places",
    ARGS,
    "attention_backend and attention_config.backend ",
)
def attention_twice(request: ServeRequest) -> Problem | None:
    return _twice(request, "attention_backend", "attention_config", "backend")


@BOOK.rule(
    "graph-sizes-twice",
    "the sizes of CUDA graphs named in two places",
    ARGS,
    '"cudagraph_capture_sizes and compilation_config."',
)
def graph_sizes_twice(request: ServeRequest) -> Problem | None:
    return _twice(
        request, "cudagraph_capture_sizes", "compilation_config", "cudagraph_capture_sizes"
    )


@BOOK.rule(
    "graph-largest-twice",
    "the largest CUDA graph named in two places",
    ARGS,
    '"max_cudagraph_capture_size and compilation_config."',
)
def graph_largest_twice(request: ServeRequest) -> Problem | None:
    return _twice(
        request, "max_cudagraph_capture_size", "compilation_config", "max_cudagraph_capture_size"
    )


def _twice(request: ServeRequest, name: str, config: str, key: str) -> Problem | None:
    if request.get(name) is None or request.part(config, key) is None:
        return None
    flag, inside = ("--" + each.replace("_", "-") for each in (name, config))
    return Problem(f"`{flag}` and {key} in `{inside}` say the same thing.", f"Leave out `{flag}`.")


@BOOK.rule(
    "tools-parser",
    "--enable-auto-tool-choice without --tool-call-parser",
    CLI,
    "Error: --enable-auto-tool-choice requires --tool-call-parser",
)
def tools_parser(request: ServeRequest) -> Problem | None:
    if not request.get("enable_auto_tool_choice") or request.get("tool_call_parser"):
        return None
    return Problem(
        "`--enable-auto-tool-choice` must know how the model writes its calls.",
        "Add --tool-call-parser with the one for this model.",
    )


@BOOK.rule(
    "log-outputs",
    "--enable-log-outputs without --enable-log-requests",
    CLI,
    "Error: --enable-log-outputs requires --enable-log-requests",
)
def log_outputs(request: ServeRequest) -> Problem | None:
    if not request.get("enable_log_outputs") or request.get("enable_log_requests"):
        return None
    return Problem(
        "`--enable-log-outputs` logs answers beside requests, and those are not logged.",
        "Leave it out, or add --enable-log-requests.",
    )


@BOOK.rule(
    "request-metrics",
    "--enable-per-request-metrics without statistics",
    CLI,
    "Error: --enable-per-request-metrics requires engine statistics ",
)
def request_metrics(request: ServeRequest) -> Problem | None:
    if not request.get("enable_per_request_metrics") or not request.get("disable_log_stats"):
        return None
    return Problem(
        "`--enable-per-request-metrics` needs the statistics, and --disable-log-stats is given.",
        "Leave out one of the two.",
    )


@BOOK.rule(
    "grpc-twice",
    "--grpc with --grpc-port",
    CLI,
    "--grpc and --grpc-port are mutually exclusive. Use --grpc ",
    since="0.32.0",
)
def grpc_twice(request: ServeRequest) -> Problem | None:
    if not request.get("grpc") or request.get("grpc_port") is None:
        return None
    return Problem(
        "`--grpc` serves gRPC instead of HTTP, `--grpc-port` beside it.",
        "Leave out one of the two.",
    )


@BOOK.rule(
    "grpc-port-frontend",
    "--grpc-port without the Rust frontend",
    CLI,
    "--grpc-port requires VLLM_USE_RUST_FRONTEND=1 vllm serve",
    since="0.32.0",
)
def grpc_port_frontend(request: ServeRequest) -> Problem | None:
    if request.get("grpc_port") is None or request.get("grpc"):
        return None
    if request.environment.get("VLLM_USE_RUST_FRONTEND") in ("1", "true", "True"):
        return None
    return Problem(
        "`--grpc-port` is served by the Rust frontend, which is off.",
        "Set VLLM_USE_RUST_FRONTEND=1, or leave it out.",
    )
