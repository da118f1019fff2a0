"""What to write instead of arguments that `vllm serve` does not have (0.26.0 to 0.33.0).

Key: the names, apart by spaces. Where the text says "since" or "was", the releases were compared.
"""

_RAY = (
    "Ray is chosen with `--distributed-executor-backend ray`, and found through the environment "
    "variable RAY_ADDRESS."
)
_SPEC = "Speculative decoding is set in one JSON value: `--speculative-config`."
_LORA = "LoRA takes its sizes from the adapter: `--max-lora-rank` and `--max-loras` bound them."
_TP = "GPUs are shared out with `--tensor-parallel-size` and `--pipeline-parallel-size`."
_LEN = "The longest context, prompt and answer together, is `--max-model-len`."
_OFFLOAD = "KV cache in host memory is asked for with `--kv-offloading-size` (GiB)."
_ROPE = "Write it into the model's configuration: `--hf-overrides` with a JSON value."
_CUDA = "The sizes that CUDA graphs are captured for: `--cudagraph-capture-sizes`, "
_CUDA += "the largest: `--max-cudagraph-capture-size`."
_PORTS = (
    "Ray's workers get their ports from `ray start --min-worker-port` and "
    "`ray start --max-worker-port`, on every host."
)
_NONE = "Leave it out: "

SENTENCES: dict[str, str] = {
    "--ray-enabled --use-ray --enable-ray --ray --with-ray --ray-cluster": _RAY,
    "--worker-use-ray --engine-use-ray": "It was removed. " + _RAY,
    "--ray-address --ray-head-address --ray-head --ray-head-ip": (
        "The head is named by the environment variable RAY_ADDRESS=HOST:6379 of the process, "
        "together with `--distributed-executor-backend ray`."
    ),
    "--ray-num-gpus --ray-workers --num-ray-workers": (
        "Ray's share of a host is set by `ray start --num-gpus`. " + _TP
    ),
    "--executor-backend --distributed-backend --backend": (
        "It is called `--distributed-executor-backend`."
    ),
    "--profile-memory": (
        _NONE + "memory is profiled at every start. How much is used is bounded by "
        "`--gpu-memory-utilization`, or the KV cache fixed by `--kv-cache-memory-bytes`."
    ),
    "--worker-port-min --worker-port-max --min-worker-port --max-worker-port": _PORTS,
    "--task": (
        "For embedding, scoring and reward models write `--runner pooling`; to turn a generating "
        "model into one, `--convert embed` or `--convert classify`. Otherwise leave it out."
    ),
    "--embedding --is-embedding --embeddings": "Write `--runner pooling`.",
    "--disable-log-requests": (
        _NONE + "requests are not logged unless `--enable-log-requests` is given. The portable "
        "way to say so is `--no-enable-log-requests`."
    ),
    "--log-requests": "It is called `--enable-log-requests`.",
    "--disable-log-stat --no-log-stats": "It is called `--disable-log-stats`.",
    "--use-v2-block-manager --block-manager": _NONE + "there is one block manager.",
    "--swap-space": "Preempted requests are computed again, not swapped. " + _OFFLOAD,
    "--cpu-offload": "It is called `--cpu-offload-gb` (weights). " + _OFFLOAD,
    "--preemption-mode": _NONE + "preempted requests are always computed again.",
    "--num-scheduler-steps --multi-step-stream-outputs": (
        _NONE + "steps overlap with `--async-scheduling`, which is on where it can be."
    ),
    "--disable-async-output-proc": "Overlap is switched off by `--no-async-scheduling`.",
    "--scheduler-delay-factor": _NONE + "the scheduler no longer delays prompts.",
    "--num-lookahead-slots --speculative-model --num-speculative-tokens --spec-decode": _SPEC,
    "--speculative-draft-tensor-parallel-size --speculative-disable-by-batch-size": _SPEC,
    "--ngram-prompt-lookup-max --ngram-prompt-lookup-min --draft-model": _SPEC,
    "--speculative-max-model-len --speculative-model-quantization": _SPEC,
    "--guided-decoding-backend --guided-decoding": (
        "It is called `--structured-outputs-config.backend` now."
    ),
    "--enable-reasoning": _NONE + "`--reasoning-parser NAME` alone is enough.",
    "--max-seq-len-to-capture --max-context-len-to-capture --cuda-graph-sizes": _CUDA,
    "--rope-scaling --rope-theta": _ROPE,
    "--device": _NONE + "the device follows from the package that is installed.",
    "--load-in-4bit --load-in-8bit": (
        "Take a checkpoint that is quantised: the method is read from it, or named by "
        "`--quantization`."
    ),
    "--quantization-param-path": (
        "Scales of an fp8 KV cache come from the checkpoint; ask for it with `--kv-cache-dtype`."
    ),
    "--calculate-kv-scales": (
        "It was removed: the scales of an fp8 KV cache come from the checkpoint, or are 1."
    ),
    "--kv-cache-memory --kv-cache-size": "It is called `--kv-cache-memory-bytes`.",
    "--override-attention-dtype": "It was removed: attention follows `--dtype`.",
    "--max-num-partial-prefills --max-long-partial-prefills": (
        "It was removed. How much of a long prompt a step may take: "
        "`--long-prefill-token-threshold`."
    ),
    "--disable-frontend-multiprocessing": (
        _NONE + "the engine always has a process of its own; servers: `--api-server-count`."
    ),
    "--tokenizer-pool-size --tokenizer-pool-type --tokenizer-pool-extra-config": (
        _NONE + "tokenizing needs no pool; servers: `--api-server-count`."
    ),
    "--enable-prompt-adapter --max-prompt-adapters --max-prompt-adapter-token": (
        "Prompt adapters were removed; LoRA remains: `--enable-lora`."
    ),
    "--lora-extra-vocab-size --long-lora-scaling-factors": _LORA,
    "--num-gpus --gpus --ngpus --num-gpu --gpu-count": _TP,
    "--tp-size --tp --tensor-parallel": "It is called `--tensor-parallel-size`, `-tp` for short.",
    "--pp-size --pp --pipeline-parallel": (
        "It is called `--pipeline-parallel-size`, `-pp` for short."
    ),
    "--dp-size --dp --data-parallel": "It is called `--data-parallel-size`, `-dp` for short.",
    "--expert-parallel-size --ep-size --ep": (
        "The size follows from TP and DP: `--enable-expert-parallel` is all there is to say."
    ),
    "--num-nodes --nodes --num-hosts --hosts": (
        "With Ray the hosts follow from its cluster. vLLM's own way over several hosts, without "
        "Ray, is `--nnodes` with `--node-rank` and `--master-addr`."
    ),
    "--mem-fraction-static --gpu-memory --gpu-memory-fraction --gpu-mem-utilization": (
        "The share of a GPU's memory is `--gpu-memory-utilization`."
    ),
    "--context-length --max-context-length --max-length --max-seq-len --max-total-tokens": _LEN,
    "--max-context-len --ctx-size --n-ctx --max-tokens": _LEN,
    "--max-batch-size --max-running-requests --max-concurrency --max-num-requests": (
        "How many requests run at once is `--max-num-seqs`."
    ),
    "--max-prefill-tokens --max-batch-prefill-tokens --chunked-prefill-size": (
        "How many tokens a step may take is `--max-num-batched-tokens`."
    ),
    "--model-path --model-dir --model-name-or-path": (
        "The model is the first word after `vllm serve`."
    ),
    "--model-name --model-alias": "The name that clients use is `--served-model-name`.",
    "--num-workers --workers": "HTTP servers: `--api-server-count`. " + _TP,
    "--shm-size --ipc": "That is an option of the container, not of vLLM.",
    "--node-ip-address --node-ip": (
        "The address of a host is set by `ray start --node-ip-address`, and by the environment "
        "variable VLLM_HOST_IP."
    ),
    "-O": "The level follows at once, `-O0` to `-O3`, or write `--optimization-level`.",
}
