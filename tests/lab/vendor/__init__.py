"""Stand-ins for NVIDIA's packages: the names, the files and the answers, without any GPU."""
