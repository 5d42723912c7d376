"""`python -m sage_grpo`, for launchers that start modules: `torchrun … -m sage_grpo train recipe.yaml`."""

from sage_grpo.cli import main

main()
