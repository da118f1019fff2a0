"""Programs that run inside the CPU image, with the real vLLM and Ray in it."""
