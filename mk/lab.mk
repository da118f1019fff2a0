# Hosts out of namespaces on this machine, as root. `make lab-up` says what it will create.
LAB ?= lab
HOSTS ?= 2
RELEASE ?= bookworm
HOST ?= node-a

lab-up: $(VENV) ## Make the lab and boot it (HOSTS=2, LAB=lab, RELEASE=bookworm)
	$(BIN)/python -m vllm_cluster.lab up --lab $(LAB) --hosts $(HOSTS) --release $(RELEASE)

lab-down: $(VENV) ## Remove the lab with all that it made (LAB=lab)
	$(BIN)/python -m vllm_cluster.lab down --lab $(LAB)

lab-shell: $(VENV) ## Log in to a lab host as root (HOST=node-a)
	$(BIN)/python -m vllm_cluster.lab shell --lab $(LAB) $(HOST)

.PHONY: lab-up lab-down lab-shell
