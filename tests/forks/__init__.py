"""Processes of tests that start in milliseconds: forked from one that has imported the libraries once.

`server` imports torch, the model libraries and this package, and forks for every request. `popen` takes the place of
`subprocess.Popen` in tests and in what they start; `client` that of `python`, `sage-grpo` and `torchrun` on the path of
shell scripts. A fork is a process like any other: it has its own number, can be killed, and ends as its program ends.

A test whose subject is the start itself has the marker `real_start`. SAGE_GRPO_FORKS=0 makes every start real.
"""
