# The cluster as a whole, in order (INV=inventories/prod.py).
restart: $(VENV) ## Restart in order; running requests finish (INV=inventories/prod.py)
	$(BIN)/vllm-cluster restart $(INV:.py=.yaml)

stop: $(VENV) ## Stop in order; a reboot starts it again, unless KEEP_DOWN=1 (INV=inventories/prod.py)
	$(BIN)/vllm-cluster stop $(if $(KEEP_DOWN),--keep-down) $(INV:.py=.yaml)

start: $(VENV) ## Start what lies on the hosts, and wait for a completion (INV=inventories/prod.py)
	$(BIN)/vllm-cluster start $(INV:.py=.yaml)

upgrade: $(VENV) ## Deploy another image or arguments; judged, and back if it fails (RETRY=yes: a failed one again)
	$(BIN)/pyinfra -y --fail-percent 0 $(if $(RETRY),--data retry=$(RETRY)) $(INV) deploys/cluster.py

rollback: $(VENV) ## Back to the generation before, or TO=N (INV=inventories/prod.py)
	$(BIN)/vllm-cluster rollback $(if $(TO),--to $(TO)) $(INV:.py=.yaml)

test-upgrade: $(VENV) ## Two operators, restarts, upgrades that fail, ways back: root, an hour
	$(BIN)/pytest tests/lab/test_operators_lab.py tests/lab/test_order_lab.py \
	  tests/lab/test_upgrade_lab.py tests/lab/test_upgrade_real_lab.py

.PHONY: restart stop start upgrade rollback test-upgrade
