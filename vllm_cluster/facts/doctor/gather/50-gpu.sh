gpu() {
  begin gpu-driver
  cat /sys/module/nvidia/version 2>/dev/null | sed 's/^/loaded /'
  ls -d /dev/nvidia* 2>/dev/null | sed 's/^/device /'
  dpkg-query --show --showformat='package ${Package} ${Version} ${db:Status-Status}\n' \
    'nvidia-*' 'libnvidia-*' 'cuda-drivers*' 'datacenter-gpu-manager*' 2>/dev/null
  apt-mark showhold 2>/dev/null | sed 's/^/held /'
  grep -hoE 'lib(cuda|nvidia-ml)\.so\.[0-9.]+' /etc/cdi/*.yaml /var/run/cdi/*.yaml 2>/dev/null |
    sort -u | sed 's/^/cdi /'
  # Whether the driver's module was built for each kernel that may be booted.
  local kernel
  for kernel in /boot/vmlinuz-*; do
    kernel=${kernel#/boot/vmlinuz-}
    [ -d "/lib/modules/$kernel" ] || continue
    echo "kernel $kernel $(find "/lib/modules/$kernel" -name 'nvidia.ko*' -print -quit)"
  done
  begin nvidia-smi
  if have nvidia-smi; then timeout 20 nvidia-smi -q -x 2>&1; else echo "no nvidia-smi"; fi
  begin topology
  have nvidia-smi && timeout 10 nvidia-smi topo -m 2>&1
  begin dcgm-log
  timeout 4 journalctl --boot --unit=nvidia-dcgm --lines=2000 --no-pager --output=cat 2>/dev/null |
    grep 'in health system' | tail -n 20
  if [ "$deep" = yes ] && have dcgmi; then begin dcgmi-diag; timeout 180 dcgmi diag -r 1 2>&1; fi
}
