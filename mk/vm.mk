# Two machines with kernels of their own under software emulation (QEMU without KVM), as root.
test-vm: $(VENV) ## Prove NFS, disks by UUID and a seed on virtual machines: root, half an hour
	@command -v qemu-system-x86_64 qemu-img mmdebstrap mke2fs socat >/dev/null || { \
	  echo "needs: apt-get install qemu-system-x86 qemu-utils mmdebstrap e2fsprogs socat"; exit 1; }
	$(BIN)/pytest tests/vm --durations=0

test-converges: $(VENV) ## Kill a first run at every boundary, each time on bare hosts: root, half an hour
	EVERY_BOUNDARY=1 $(BIN)/pytest -v --capture=no tests/lab/test_converges.py

.PHONY: test-vm test-converges
