bench-plan: $(VENV) ## Time `vllm-cluster plan`; writes docs/bench-plan.md
	$(BIN)/python -m benchmarks.plan

.PHONY: bench-plan
