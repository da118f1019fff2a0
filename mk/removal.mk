# The hosts as they were, and what they consist of (INV=inventories/prod.py).
down: $(VENV) ## Put the hosts back to what they were; asks first (INV=inventories/prod.py, ARGS=--packages)
	$(BIN)/vllm-cluster down $(INV:.py=.yaml) $(ARGS)

fingerprint: $(VENV) ## Show what the hosts consist of, or ARGS='--compare FILE' (INV=inventories/prod.py)
	$(BIN)/vllm-cluster fingerprint $(INV:.py=.yaml) $(ARGS)

test-removal: $(VENV) ## Deploy, remove, and compare whole hosts with before: root, half an hour
	$(BIN)/pytest tests/lab/test_removal_lab.py

test-head-move: $(VENV) reference ## Move the head, drop and add hosts, Ray away and back: root, half an hour
	$(BIN)/pytest tests/lab/test_head_move_lab.py tests/lab/test_head_move_real.py

.PHONY: down fingerprint test-removal test-head-move
