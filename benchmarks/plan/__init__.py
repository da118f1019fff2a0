"""How long `vllm-cluster plan` takes."""
