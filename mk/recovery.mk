# Faults: each put into a cluster of real Ray and vLLM that serves. FAULTS=gcs,engine chooses; results
# of a commit are kept in .cache/faults, so that a run that was broken off goes on where it was.
test-faults: $(VENV) image model ## Put every fault into a serving lab, and write docs/faults.md: root, an hour
	$(BIN)/pytest tests/lab/test_faults.py --durations=0; code=$$?; \
	  $(BIN)/python -m tests.lab.faults.table; exit $$code

.PHONY: test-faults
