# What is wrong, how it stands, and all of it in one archive (INV=inventories/prod.py).
doctor: $(VENV) ## Say what is wrong with the cluster, and the fix (INV=inventories/prod.py)
	$(BIN)/vllm-cluster doctor $(INV:.py=.yaml)

status: $(VENV) ## Show the cluster on one screen (INV=inventories/prod.py)
	$(BIN)/vllm-cluster status $(INV:.py=.yaml)

support-bundle: $(VENV) ## Gather findings, state and logs in one archive (INV=inventories/prod.py)
	$(BIN)/vllm-cluster support-bundle $(INV:.py=.yaml)

test-doctor: $(VENV) image model ## Put every fault into a lab, alone and in pairs: an hour, root
	FAULTS=all $(BIN)/pytest tests/lab/test_doctor_many.py \
	  tests/lab/test_doctor_faults.py tests/lab/test_doctor_real.py

.PHONY: doctor status support-bundle test-doctor
