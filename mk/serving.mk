# The cluster as a whole, in order (INV=inventories/prod.py).
restart: $(VENV) ## Restart in order; running requests finish (INV=inventories/prod.py)
	$(BIN)/vllm-cluster restart $(INV:.py=.yaml)

stop: $(VENV) ## Stop in order; a reboot starts it again, unless KEEP_DOWN=1 (INV=inventories/prod.py)
	$(BIN)/vllm-cluster stop $(if $(KEEP_DOWN),--keep-down) $(INV:.py=.yaml)

start: $(VENV) ## Start what lies on the hosts, and wait for a completion (INV=inventories/prod.py)
	$(BIN)/vllm-cluster start $(INV:.py=.yaml)

.PHONY: restart stop start
