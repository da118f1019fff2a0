"""`vllm-cluster down`: a host put back to what it was, from the record that the steps left there.

look -> decide -> run: one round trip reads the record and what is there now, `decide` is pure, and
its actions are shown before they are done. Whatever was cut off is finished by the next `down`.
"""
