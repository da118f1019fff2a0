# One part of the hosts alone: make part PART=docker INV=inventories/prod.py
PART ?= names

part: $(VENV) ## Deploy one part of the hosts (PART=names, network, kernel, firewall, gpu, docker)
	$(BIN)/pyinfra -y --fail-percent 0 $(INV) deploys/$(PART).py

test-hosts: $(VENV) ## Test the hosts' parts on bare lab hosts in bad states: root, minutes
	$(BIN)/pytest tests/lab/test_hosts_*.py

.PHONY: part test-hosts
