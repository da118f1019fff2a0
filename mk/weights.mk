bench-weights: $(VENV) ## Measure the weights' fan-out against rsync (root, 40 min)
	$(BIN)/python -m benchmarks.weights.bench
test-weights: $(VENV) reference ## Test the weights on namespaces and lab hosts: hurt, killed, loaded by vLLM (root, 30 min)
	$(BIN)/python -m pytest -q tests/unit/weights tests/unit/placing tests/lab/weights tests/lab/test_weights_deploy.py tests/lab/test_weights_real.py
.PHONY: bench-weights test-weights
