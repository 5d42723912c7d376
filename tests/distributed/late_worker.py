"""`sage-grpo`, in which the second process looks for an earlier run seconds after the first has begun."""

import os
import time

from sage_grpo.cli import main
from sage_grpo.training.trainer import Trainer

if __name__ == "__main__":
    resume = Trainer._resume
    late = 3 * int(os.environ["RANK"])
    Trainer._resume = lambda trainer: (time.sleep(late), resume(trainer))[1]
    main()
