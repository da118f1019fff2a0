"""The image for CPUs: real vLLM and real Ray on Debian, for hosts without a GPU."""
