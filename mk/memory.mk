# The memory plan: the table of public models, and its numbers held against real vLLM.
memory-table: $(VENV) ## Write the table of public models into docs/memory.md
	$(BIN)/python -m scripts.memory_table

test-memory: $(VENV) image ## Hold the memory plan against real vLLM, 24 cases: root, half an hour
	$(BIN)/python -m scripts.memory_proof $(if $(FRESH),--fresh)

.PHONY: memory-table test-memory
