test-images: $(VENV) ## Test the image's way to every host, in time, bytes and faults (root, 20 min)
	$(BIN)/pytest -s tests/unit/image tests/lab/images
.PHONY: test-images
