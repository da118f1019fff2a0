bench-weights: $(VENV) ## Measure the weights' fan-out against rsync (root, 40 min)
	$(BIN)/python -m benchmarks.weights.bench
test-weights: $(VENV) ## Test the weights' agent, and hurt it on namespaces (root, 10 min)
	$(BIN)/python -m pytest -q tests/unit/weights tests/lab/weights
.PHONY: bench-weights test-weights
