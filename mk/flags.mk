.PHONY: flags flags-all
flags: $(VENV) ## Add the arguments of a release: make flags VLLM=0.33.0, or RAY=2.60.0
	@test -n "$(VLLM)$(RAY)" || { echo "Which release? make flags VLLM=x.y.z, or RAY=x.y.z"; exit 2; }
	$(if $(VLLM),$(BIN)/python -m scripts.flags vllm $(VLLM))
	$(if $(RAY),$(BIN)/python -m scripts.flags ray $(RAY))

flags-all: $(VENV) ## Read the arguments of every known release again
	$(BIN)/python -m scripts.flags --all

.PHONY: refusals
refusals: $(VENV) ## Write docs/refusals.md from the rules
	$(BIN)/python -m scripts.refusals
