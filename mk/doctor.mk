# What is wrong, how it stands, and all of it in one archive (INV=inventories/prod.py).
doctor: $(VENV) ## Say what is wrong with the cluster, and the fix (INV=inventories/prod.py)
	$(BIN)/vllm-cluster doctor $(INV:.py=.yaml)

status: $(VENV) ## Show the cluster on one screen (INV=inventories/prod.py)
	$(BIN)/vllm-cluster status $(INV:.py=.yaml)

support-bundle: $(VENV) ## Gather findings, state and logs in one archive (INV=inventories/prod.py)
	$(BIN)/vllm-cluster support-bundle $(INV:.py=.yaml)

# Results are kept by commit; RESUME=1 goes on from what this very commit has.
test-doctor: $(VENV) image model ## Put every fault into a lab, alone and in pairs: an hour, root
	FAULTS=all $(BIN)/pytest tests/lab/test_doctor_many.py \
	  tests/lab/test_doctor_faults.py tests/lab/test_doctor_real.py
	$(BIN)/python -m tests.lab.doctor.table

bench-doctor: $(VENV) ## Time doctor on two hosts and on sixteen; writes docs/bench-doctor.md: root
	$(BIN)/python -m benchmarks.doctor

.PHONY: doctor status support-bundle test-doctor bench-doctor
