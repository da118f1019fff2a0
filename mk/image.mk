# The image for CPUs, the tiny model and what one process answers: all below .cache, kept until
# something that they are made of changes.
image: $(VENV) ## Build the image of vLLM and Ray for CPUs: root, minutes the first time
	$(BIN)/python -m images.cpu build

model: $(VENV) image ## Make the tiny model with fixed weights
	$(BIN)/python -m images.model

reference: $(VENV) model ## Ask one vLLM process what a cluster must answer
	$(BIN)/python -m images.reference

.PHONY: image model reference
