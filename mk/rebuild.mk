# A machine made again from nothing (docs/rebuild.md).
lock: $(VENV) ## Write down what the running hosts are made of (INV=inventories/prod.py)
	$(BIN)/vllm-cluster lock $(INV:.py=.yaml)

seed: $(VENV) ## Show what an installer is told of a host (HOST=node-b SEED="--serve ADDRESS:PORT")
	@$(HOST_NAMED)
	$(BIN)/vllm-cluster seed $(INV:.py=.yaml) --host $(HOST) $(SEED)

# mk/lab.mk has a default for its shell; no machine is made anew by default.
HOST_NAMED = test "$(origin HOST)" != file || { echo "Which host? Say HOST=node-b"; exit 2; }

.PHONY: lock seed
