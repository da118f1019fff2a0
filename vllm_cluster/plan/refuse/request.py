"""What is to be served, and on what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vllm_cluster.plan.flags import FlagTable, table
from vllm_cluster.plan.refuse.limits import Limits, limits
from vllm_cluster.plan.refuse.model import ModelConfig

# vllm/config/model.py, _STR_DTYPE_TO_TORCH_DTYPE
DTYPES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class ServeRequest:
    """One `vllm serve` to judge.

    version: the release of vLLM; it must have a table (vllm_cluster.plan.flags).
    args: the values given on the command line by their parsed names, as FlagTable.values gives.
    tensor_parallel, pipeline_parallel, data_parallel: the sizes, for the rules the same as in args.
    backend: --distributed-executor-backend, None where vLLM is to choose.
    hosts: how many hosts run the model.
    gpus_per_host: how many GPUs each has, None where that is not known.
    model: the model's config.json, None where it cannot be read.
    compute_capability: of the GPUs, such as (8, 0) for an A100, None where it is not known.
    environment: what the process gets, for the few variables that vLLM's refusals look at.
    """

    version: str
    args: Mapping[str, Any] = field(default_factory=dict)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    backend: str | None = None
    hosts: int = 1
    gpus_per_host: int | None = None
    model: Mapping[str, Any] | None = None
    compute_capability: tuple[int, int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_command(
        cls, version: str, args: Sequence[str], *, backend: str | None = None, **about: Any
    ) -> "ServeRequest":
        """Read the sizes and the backend from the arguments after `vllm serve`.

        Wrong arguments are left out: check them first (FlagTable.check). `backend` is used where
        the arguments name none. `about`: hosts, gpus_per_host, model, compute_capability,
        environment.
        """
        given = table("vllm", version).values(args)
        return cls(
            version=version,
            args=given,
            tensor_parallel=given.get("tensor_parallel_size", 1),
            pipeline_parallel=given.get("pipeline_parallel_size", 1),
            data_parallel=given.get("data_parallel_size", 1),
            backend=given.get("distributed_executor_backend") or backend,
            **about,
        )

    @cached_property
    def flags(self) -> FlagTable:
        """The arguments of this release."""
        return table("vllm", self.version)

    @cached_property
    def limits(self) -> Limits:
        """What this release knows of models, quantisation and attention."""
        return limits(self.version)

    @cached_property
    def config(self) -> ModelConfig | None:
        """The model's config.json, read as vLLM reads it."""
        return ModelConfig(self.model) if self.model is not None else None

    def get(self, name: str) -> Any:
        """The value of an argument by its parsed name, or its default."""
        return self.args[name] if name in self.args else self.flags.defaults.get(name)

    def part(self, name: str, *keys: str) -> Any:
        """A value inside a JSON argument, such as part("eplb_config", "num_redundant_experts")."""
        value = self.get(name)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def replica(self) -> int:
        """How many GPUs one replica takes: TP x PP x prefill context parallel."""
        context = self.get("prefill_context_parallel_size") or 1
        return self.tensor_parallel * self.pipeline_parallel * int(context)

    @property
    def nodes(self) -> int:
        """--nnodes: hosts that vLLM starts without Ray."""
        return int(self.get("nnodes") or 1)

    @property
    def external_balancer(self) -> bool:
        """Whether every replica has an address of its own (vllm/engine/arg_utils.py)."""
        given = self.get("data_parallel_rank") is not None
        return bool(self.get("data_parallel_external_lb")) or given

    @property
    def speculative(self) -> Mapping[str, Any] | None:
        """The speculative configuration, None where there is none."""
        value = self.get("speculative_config")
        return value if isinstance(value, Mapping) else None

    @property
    def capability(self) -> int | None:
        """The compute capability times ten, such as 80, as vLLM compares it."""
        if self.compute_capability is None:
            return None
        major, minor = self.compute_capability
        return major * 10 + minor

    @property
    def quantisation(self) -> str | None:
        """The method that is asked for, else that of the checkpoint."""
        asked = self.get("quantization")
        return asked or (self.config.quantisation if self.config else None)

    @property
    def dtype(self) -> str | None:
        """What the model computes in, None where that cannot be told without the weights."""
        asked = str(self.get("dtype") or "auto")
        if asked != "auto":
            return DTYPES.get(asked, asked)
        own = self.config.dtype if self.config else None
        if own not in ("float16", "bfloat16"):
            return None  # float32 is turned into what the GPU likes best
        if own == "bfloat16" and self.capability is not None and self.capability < 80:
            return "float16"
        return own
