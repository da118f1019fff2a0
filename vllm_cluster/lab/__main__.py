"""python -m vllm_cluster.lab"""

from vllm_cluster.lab.cli import main

if __name__ == "__main__":
    main(prog_name="python -m vllm_cluster.lab")
