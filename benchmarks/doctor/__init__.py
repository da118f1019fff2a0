"""How long `vllm-cluster doctor` takes."""
