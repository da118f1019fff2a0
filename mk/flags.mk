.PHONY: flags flags-all
flags: $(VENV) ## Add the arguments of a release: make flags VLLM=0.33.0, or RAY=2.60.0
	@test -n "$(VLLM)$(RAY)" || { echo "Which release? make flags VLLM=x.y.z, or RAY=x.y.z"; exit 2; }
	$(if $(VLLM),$(BIN)/python scripts/flags.py vllm $(VLLM))
	$(if $(RAY),$(BIN)/python scripts/flags.py ray $(RAY))

flags-all: $(VENV) ## Read the arguments of every known release again
	$(BIN)/python scripts/flags.py --all
