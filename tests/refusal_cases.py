"""For each rule a command line that it refuses, and the closest one that it lets pass.

The unit tests hold the rules against them; the lab tests give the same lines to a real vLLM 0.32.0
on processors (`real`), where it gets far enough without a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "twelve": LLAMA | {"num_attention_heads": 12, "hidden_size": 192},
    "mixtral": LLAMA
    | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "deepseek": LLAMA
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": 8,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
    },
    "gemma2": LLAMA
    | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 512,
    },
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "state_size": 16,
        "num_heads": 16,
        "head_dim": 16,
        "expand": 2,
        "n_groups": 1,
        "conv_kernel": 4,
        "chunk_size": 16,
        "vocab_size": 512,
        "torch_dtype": "bfloat16",
    },
    "gptq": LLAMA
    | {
        "torch_dtype": "float16",
        "quantization_config": {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "desc_act": False,
            "sym": True,
        },
    },
    "fbgemm": LLAMA | {"quantization_config": {"quant_method": "fbgemm_fp8"}},
    "exotic": LLAMA | {"quantization_config": {"quant_method": "aqlm"}},
    "fp8": LLAMA | {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
    "mxfp4": LLAMA | {"quantization_config": {"quant_method": "mxfp4"}},
    "gone": LLAMA | {"architectures": ["Phi3SmallForCausalLM"]},
}
ELASTIC = (
    "-dp 4 --enable-elastic-ep --enable-eplb --enable-expert-parallel --eplb-config.use_async=false"
)
NGRAM = '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4'


@dataclass(frozen=True)
class Case:
    """A line that a rule refuses and one that it lets pass, for a model of MODELS.

    about: what ServeRequest is told beside the arguments; passed_about: the same for the line that
        passes, where that differs.
    real: which of the lines vLLM on processors gets far enough to judge.
    said: a part of its words, where they are not those in the rule.
    """

    rule: str
    refused: str
    passed: str
    model: str = "llama"
    passed_model: str | None = None
    version: str = "0.32.0"
    about: Mapping[str, Any] = field(default_factory=dict)
    passed_about: Mapping[str, Any] | None = None
    real: Literal["both", "refused", "no"] = "both"
    said: str = ""


A100, H100, T4 = (8, 0), (9, 0), (7, 5)
NEEDS_GPU: Literal["no"] = "no"  # says so only where it finds GPUs
OTHER_RELEASE: Literal["no"] = "no"  # another release than the one that runs here

CASES = [
    Case(
        "nnodes-backend",
        "-tp 2 --nnodes 2 --distributed-executor-backend ray",
        "-tp 2 --nnodes 2 --distributed-executor-backend mp",
    ),
    Case(
        "nnodes-dp-backend",
        "-tp 2 --nnodes 2 --data-parallel-backend ray",
        "-tp 2 --nnodes 2 --data-parallel-backend mp",
    ),
    Case("nnodes-divides", "-tp 4 -pp 2 --nnodes 3", "-tp 4 -pp 2 --nnodes 2"),
    Case("node-rank", "-tp 2 --nnodes 2 --node-rank 2", "-tp 2 --nnodes 2 --node-rank 1"),
    Case(
        "nnodes-dp-groups",
        "-tp 4 -dp 3 --nnodes 2 --data-parallel-size-local 1 --distributed-executor-backend mp",
        "-tp 4 -dp 2 --nnodes 2 --data-parallel-size-local 1 --distributed-executor-backend mp",
        model="mixtral",
        real="no",  # asked for only when processes start
    ),
    Case(
        "world-exceeds-host",
        "-tp 4 -pp 2",
        "-tp 4 -pp 2 --distributed-executor-backend ray",
        about={"gpus_per_host": 4},
        real=NEEDS_GPU,
    ),
    Case(
        "pp-backend",
        "-pp 2 --distributed-executor-backend uni",
        "-pp 2 --distributed-executor-backend mp",
    ),
    Case(
        "nsight-ray",
        "--ray-workers-use-nsight --distributed-executor-backend mp",
        "--distributed-executor-backend mp",
    ),
    Case("headless-api-servers", "--headless --api-server-count 2", "--api-server-count 2"),
    Case(
        "headless-hybrid",
        "--headless -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
        "-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
        model="mixtral",
    ),
    Case(
        "layer-partition",
        "-pp 2",
        "-pp 2 --distributed-executor-backend mp",
        about={"environment": {"VLLM_PP_LAYER_PARTITION": "1,1,2"}},
        passed_about={"environment": {"VLLM_PP_LAYER_PARTITION": "1,3"}},
        real="no",  # read when the layers are made
    ),
    Case("numa-bind", "--numa-bind-nodes 0", "--numa-bind --numa-bind-nodes 0"),
    Case(
        "balancer-modes",
        "-dp 4 --data-parallel-rank 0 --data-parallel-hybrid-lb --data-parallel-size-local 2",
        "-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
        model="mixtral",
    ),
    Case(
        "hybrid-local-size",
        "-dp 4 --data-parallel-hybrid-lb",
        "-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2",
        model="mixtral",
    ),
    Case(
        "external-rank",
        "-dp 2 --data-parallel-external-lb",
        "-dp 2 --data-parallel-external-lb --data-parallel-rank 0",
        model="mixtral",
    ),
    Case(
        "external-node-rank",
        "-tp 2 -dp 4 --nnodes 2 --data-parallel-external-lb",
        "-tp 2 -dp 2 --nnodes 2 --data-parallel-external-lb",
        model="mixtral",
    ),
    Case(
        "external-local-size",
        "-dp 4 --data-parallel-rank 0 --data-parallel-size-local 2",
        "-dp 4 --data-parallel-rank 0 --data-parallel-size-local 1",
        model="mixtral",
    ),
    Case(
        "external-dense",
        "-dp 2 --data-parallel-rank 0",
        "-dp 2 --data-parallel-rank 0",
        passed_model="mixtral",
    ),
    Case("external-single", "--data-parallel-rank 0", "-dp 2", model="mixtral"),
    Case(
        "dp-local-size",
        "-dp 2 --data-parallel-size-local 4",
        "-dp 4 --data-parallel-size-local 2",
        model="mixtral",
    ),
    Case(
        "dp-rank-range",
        "-dp 2 --data-parallel-rank 2",
        "-dp 2 --data-parallel-rank 1",
        model="mixtral",
    ),
    Case(
        "multi-port-sizes",
        "-dp 4 --data-parallel-multi-port-external-lb",
        "-dp 4 --data-parallel-multi-port-external-lb --data-parallel-size-local 2",
        model="mixtral",
    ),
    Case(
        "multi-port-servers",
        "-dp 4 --data-parallel-multi-port-external-lb --data-parallel-size-local 2 -asc 2",
        "-dp 4 --data-parallel-multi-port-external-lb --data-parallel-size-local 2 -asc 1",
        model="mixtral",
    ),
    Case(
        "fault-tolerance-balancer",
        "-dp 2 --enable-fault-tolerance",
        "-dp 2 --enable-fault-tolerance --data-parallel-rank 0",
        model="mixtral",
    ),
    Case(
        "elastic-eplb",
        "-dp 2 --enable-elastic-ep",
        "-dp 2 --enable-elastic-ep --enable-eplb --enable-expert-parallel",
        model="mixtral",
        real="refused",  # the line that passes needs GPUs
    ),
    Case(
        "elastic-pp",
        "-dp 2 -pp 2 --enable-elastic-ep --enable-eplb --enable-expert-parallel",
        "-dp 2 -tp 2 --enable-elastic-ep --enable-eplb --enable-expert-parallel",
        model="mixtral",
        real="refused",
    ),
    Case(
        "elastic-hybrid",
        f"{ELASTIC} --data-parallel-hybrid-lb --data-parallel-size-local 2",
        ELASTIC,
        model="mixtral",
        real="refused",
    ),
    Case(
        "elastic-external",
        f"{ELASTIC} --data-parallel-rank 0",
        ELASTIC,
        model="mixtral",
        real="refused",
    ),
    Case(
        "elastic-max-dp",
        f"{ELASTIC} --elastic-ep-max-dp-size 2",
        f"{ELASTIC} --elastic-ep-max-dp-size 8",
        model="mixtral",
        real="refused",
    ),
    Case("tp-heads", "-tp 3", "-tp 4"),
    Case("pp-model", "-pp 2", "-pp 2", model="mamba2", passed_model="llama"),
    Case(
        "dcp-tp", "-tp 4 --decode-context-parallel-size 3", "-tp 4 --decode-context-parallel-size 2"
    ),
    Case(
        "dcp-pcp",
        "-tp 2 --prefill-context-parallel-size 2 --decode-context-parallel-size 3",
        "-tp 2 --prefill-context-parallel-size 2 --decode-context-parallel-size 1",
        real="refused",  # the line that passes needs the model runner of GPUs
    ),
    Case(
        "pcp-dp",
        "-dp 2 --prefill-context-parallel-size 2",
        "-dp 2",
        version="0.27.1",
        real=OTHER_RELEASE,
    ),
    Case(
        "dcp-a2a",
        "-tp 4 --dcp-comm-backend a2a",
        "-tp 4 --dcp-comm-backend a2a --decode-context-parallel-size 2",
        version="0.27.1",
        real=OTHER_RELEASE,
    ),
    Case(
        "dcp-kv-heads",
        "-tp 2 --decode-context-parallel-size 2",
        "-tp 4 --decode-context-parallel-size 2",
    ),
    Case(
        "dcp-most",
        "-tp 8 --decode-context-parallel-size 8",
        "-tp 8 --decode-context-parallel-size 4",
    ),
    Case(
        "dcp-queries",
        "-tp 12 --decode-context-parallel-size 4",
        "-tp 12 --decode-context-parallel-size 3",
        model="twelve",
    ),
    Case(
        "ep-dense",
        "-tp 2 --enable-expert-parallel",
        "-tp 2 --enable-expert-parallel",
        passed_model="mixtral",
    ),
    Case(
        "eplb-ep",
        "-tp 2 --enable-eplb",
        "-tp 2 --enable-eplb --enable-expert-parallel",
        model="mixtral",
        real=NEEDS_GPU,
    ),
    Case(
        "eplb-sizes",
        "--enable-eplb --enable-expert-parallel",
        "-tp 2 --enable-eplb --enable-expert-parallel",
        model="mixtral",
        real=NEEDS_GPU,
    ),
    Case(
        "eplb-redundant",
        "-tp 2 --eplb-config.num_redundant_experts 2",
        "-tp 2 --eplb-config.num_redundant_experts 0",
        model="mixtral",
    ),
    Case(
        "routed-experts-pp",
        "-pp 2 --enable-return-routed-experts",
        "-tp 2 --enable-return-routed-experts",
        model="mixtral",
        real="no",  # needs the second model runner, which processors lack
    ),
    Case("hc-sp-pp", "-tp 2 -pp 2 --enable-hc-sp", "-tp 2 --enable-hc-sp", real=NEEDS_GPU),
    Case(
        "dbo-thresholds",
        "-dp 2 --enable-dbo --dbo-decode-token-threshold 1",
        "-dp 2 --enable-dbo --dbo-decode-token-threshold 2",
        model="mixtral",
    ),
    Case(
        "batch-below-context",
        "--no-enable-chunked-prefill --max-num-batched-tokens 1k --max-model-len 2048",
        "--no-enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 2048",
    ),
    Case(
        "batch-below-requests",
        "--max-num-batched-tokens 64 --max-num-seqs 65",
        "--max-num-batched-tokens 64 --max-num-seqs 64",
    ),
    Case(
        "active-above-requests",
        "--max-num-active-seqs 9 --max-num-seqs 8",
        "--max-num-active-seqs 8 --max-num-seqs 8",
    ),
    Case(
        "long-prompt-threshold",
        "--long-prefill-token-threshold 4097",
        "--long-prefill-token-threshold 4096",
    ),
    Case(
        "partial-prefills-chunked",
        "--max-num-partial-prefills 2 --no-enable-chunked-prefill",
        "--max-num-partial-prefills 2",
        version="0.26.0",
        real=OTHER_RELEASE,
    ),
    Case(
        "partial-prefills-long",
        "--max-num-partial-prefills 2 --max-long-partial-prefills 3",
        "--max-num-partial-prefills 3 --max-long-partial-prefills 3",
        version="0.26.0",
        real=OTHER_RELEASE,
    ),
    Case(
        "async-speculative",
        f"--async-scheduling --speculative-config {NGRAM}}}",
        f"--speculative-config {NGRAM}}}",
    ),
    Case(
        "async-padded",
        "--async-scheduling --speculative-config.method eagle "
        "--speculative-config.disable_padded_drafter_batch true",
        "--async-scheduling --speculative-config.method eagle",
        real="no",  # needs a draft model
    ),
    Case(
        "async-old-ray",
        "--async-scheduling --distributed-executor-backend ray",
        "--async-scheduling --distributed-executor-backend ray",
        about={"environment": {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0"}},
        passed_about={},
    ),
    Case("model-removed", "", "", model="gone", passed_model="llama"),
    Case("context-above-model", "--max-model-len 8k", "--max-model-len 4096"),
    Case("float16-model", "--dtype half", "--dtype bfloat16", model="gemma2"),
    Case(
        "bfloat16-gpu",
        "--dtype bfloat16",
        "--dtype bfloat16",
        about={"compute_capability": T4},
        passed_about={"compute_capability": A100},
        real=NEEDS_GPU,
    ),
    Case(
        "kv-dtype-unknown",
        "--kv-cache-dtype fp9",
        "--kv-cache-dtype fp8",
        version="0.33.0",
        real=OTHER_RELEASE,
    ),
    Case(
        "kv-dtype-differs",
        "--kv-cache-dtype float16",
        "--kv-cache-dtype bfloat16",
        version="0.33.0",
        real=OTHER_RELEASE,
    ),
    Case(
        "kv-nvfp4-latent",
        "--kv-cache-dtype nvfp4",
        "--kv-cache-dtype auto",
        model="deepseek",
    ),
    Case(
        "mamba-block-prefix",
        "--mamba-block-size 16 --no-enable-prefix-caching",
        "--mamba-block-size 16 --enable-prefix-caching",
    ),
    Case(
        "lora-model",
        "--enable-lora",
        "--enable-lora",
        model="mamba2",
        passed_model="llama",
        real=NEEDS_GPU,
    ),
    Case(
        "attention-gpu",
        "--attention-backend FLASHMLA",
        "--attention-backend FLASHMLA",
        model="deepseek",
        about={"compute_capability": A100},
        passed_about={"compute_capability": H100},
        real=NEEDS_GPU,
    ),
    Case(
        "attention-kv-dtype",
        "--attention-backend flex_attention --kv-cache-dtype fp8",
        "--attention-backend triton_attn --kv-cache-dtype fp8",
        real=NEEDS_GPU,
    ),
    Case("quantisation-unknown", "", "", model="exotic", passed_model="llama"),
    Case("quantisation-differs", "--quantization fp8", "", model="gptq"),
    Case(
        "quantisation-deprecated",
        "",
        "--allow-deprecated-quantization",
        model="fbgemm",
        real="refused",  # processors refuse the method first
    ),
    Case(
        "quantisation-gpu",
        "",
        "",
        model="mxfp4",
        about={"compute_capability": T4},
        passed_about={"compute_capability": A100},
        real=NEEDS_GPU,
    ),
    Case(
        "quantisation-dtype",
        "--dtype float32",
        "--dtype bfloat16",
        model="fp8",
    ),
    Case(
        "lora-cpu",
        "--enable-lora --max-loras 4 --max-cpu-loras 2",
        "--enable-lora --max-loras 4 --max-cpu-loras 4",
    ),
    Case(
        "lora-speculative",
        f"--enable-lora --max-num-batched-tokens 9 --max-num-seqs 4 -sc {NGRAM}}}",
        f"--enable-lora --max-num-batched-tokens 12 --max-num-seqs 4 -sc {NGRAM}}}",
    ),
    Case(
        "speculative-method",
        '--speculative-config {"method":"telepathy","num_speculative_tokens":2}',
        f"--speculative-config {NGRAM}}}",
        said="literal_error",
    ),
    Case(
        "speculative-tokens",
        '--speculative-config {"method":"ngram","num_speculative_tokens":0}',
        '--speculative-config {"method":"ngram","num_speculative_tokens":1}',
        said="greater_than",
    ),
    Case(
        "speculative-tp",
        f'--speculative-config {NGRAM},"tensor_parallel_size":1}}',
        f"--speculative-config {NGRAM}}}",
    ),
    Case(
        "speculative-draft-tp",
        f'-tp 4 --speculative-config {NGRAM},"draft_tensor_parallel_size":2}}',
        f'-tp 4 --speculative-config {NGRAM},"draft_tensor_parallel_size":4}}',
        real="no",  # looked at only with a draft model
    ),
    Case(
        "speculative-ngram",
        f'--speculative-config {NGRAM},"prompt_lookup_min":5}}',
        f'--speculative-config {NGRAM},"prompt_lookup_min":4}}',
    ),
    Case(
        "speculative-fast-prefill",
        "--kv-sharing-fast-prefill --speculative-config.method eagle3",
        "--kv-sharing-fast-prefill --speculative-config.method ngram",
        real="no",  # needs a draft model
    ),
    Case(
        "adaptive-pp",
        "-pp 2 --speculative-config.enable_adaptive_verification true",
        "-tp 2 --speculative-config.enable_adaptive_verification true",
        real="no",  # needs CUDA graphs
    ),
    Case(
        "speculative-metrics",
        "--per-request-spec-decode-metrics summary",
        f"--per-request-spec-decode-metrics summary --speculative-config {NGRAM}}}",
    ),
    Case(
        "attention-twice",
        "--attention-backend CPU_ATTN --attention-config.backend CPU_ATTN",
        "--attention-backend CPU_ATTN",
    ),
    Case(
        "graph-sizes-twice",
        "--cudagraph-capture-sizes 1 2 --compilation-config.cudagraph_capture_sizes [1,2]",
        "--cudagraph-capture-sizes 1 2",
    ),
    Case(
        "graph-largest-twice",
        "--max-cudagraph-capture-size 8 --compilation-config.max_cudagraph_capture_size 8",
        "--max-cudagraph-capture-size 8",
    ),
    Case(
        "tools-parser",
        "--enable-auto-tool-choice",
        "--enable-auto-tool-choice --tool-call-parser hermes",
    ),
    Case("log-outputs", "--enable-log-outputs", "--enable-log-outputs --enable-log-requests"),
    Case(
        "request-metrics",
        "--enable-per-request-metrics --disable-log-stats",
        "--enable-per-request-metrics",
    ),
    Case("grpc-twice", "--grpc --grpc-port 50051", "--grpc", real="refused"),
    Case(
        "grpc-port-frontend",
        "--grpc-port 50051",
        "--grpc-port 50051",
        passed_about={"environment": {"VLLM_USE_RUST_FRONTEND": "1"}},
        real="refused",  # the line that passes starts another program
    ),
]
