"""What one vLLM process answers: the measure for what a cluster answers."""
