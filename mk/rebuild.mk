# A machine made again from nothing (docs/rebuild.md).
lock: $(VENV) ## Write down what the running hosts are made of (INV=inventories/prod.py)
	$(BIN)/vllm-cluster lock $(INV:.py=.yaml)

seed: $(VENV) ## Show what an installer is told of a host (HOST=node-b SEED="--serve ADDRESS:PORT")
	@$(HOST_NAMED)
	$(BIN)/vllm-cluster seed $(INV:.py=.yaml) --host $(HOST) $(SEED)

rebuild: $(VENV) ## Make a host again from nothing (HOST=node-b INV=inventories/prod.py)
	@$(HOST_NAMED)
	$(BIN)/vllm-cluster rebuild $(INV:.py=.yaml) --host $(HOST)

test-rebuild: $(VENV) reference ## Wipe lab hosts to a bare OS and rebuild them: root, half an hour
	$(BIN)/pytest tests/lab/test_rebuild_machine.py tests/lab/test_rebuild_lab.py \
	  tests/lab/test_rebuild_vllm.py

test-seed: $(VENV) ## Hold seeds against the installers' own checkers: root, minutes
	$(BIN)/pytest tests/unit/seed tests/lab/test_seed_checkers.py

# mk/lab.mk has a default for its shell; no machine is made anew by default.
HOST_NAMED = test "$(origin HOST)" != file || { echo "Which host? Say HOST=node-b"; exit 2; }

.PHONY: lock seed rebuild test-rebuild test-seed
