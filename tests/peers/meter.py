"""What an iteration takes and asks of the network, measured alike in every framework.

A framework runs as a process that makes one iteration each time it gets a word on standard input, and answers with a
line of JSON. So processes of several frameworks can take turns on one core.
"""

import contextlib
import importlib.metadata
import json
import resource
import sys
import time
from collections import Counter

import torch
from peft.tuners.lora import LoraLayer
from torch.optim.optimizer import register_optimizer_step_post_hook

NEXT, ALONE = "next", "alone"  # an iteration; and its calls by themselves after it
LIBRARIES = ("torch", "diffusers", "transformers", "peft", "accelerate")


class Meter:
    """Calls of a transformer with adapters, by kind, and the same calls with nothing around them.

    Without gradient, adapters tell the kinds apart: the policy of a rollout has them, the reference has not.
    """

    def __init__(self, network):
        self.network, self.listening = network, True
        self.adapters = [layer for layer in network.modules() if isinstance(layer, LoraLayer)]
        self.trained = [p for p in network.parameters() if p.requires_grad]
        self.hooks = (
            network.register_forward_hook(self._called, with_kwargs=True),
            register_optimizer_step_post_hook(self._stepped),
        )
        self.reset()

    def close(self):
        for hook in self.hooks:
            hook.remove()

    def reset(self):
        self.calls, self.inputs, self.rows, self.steps = [], {}, Counter(), 0

    def _called(self, network, args, inputs, out):
        if not self.listening:
            return
        rows = len(inputs["hidden_states"])
        kind = "training" if torch.is_grad_enabled() else "rollout"
        kind = "reference" if self.adapters[0].disable_adapters else kind
        self.calls.append((kind, rows))
        self.inputs[kind, rows] = inputs
        self.rows[kind] += rows
        if out[0].requires_grad:
            out[0].register_hook(lambda gradient: self.rows.update(backward=rows))

    def _stepped(self, optimizer, args, kwargs):
        self.steps += 1

    def alone(self):
        """Processor seconds of the iteration's calls, and of the ways back, by themselves."""
        self.listening, began = False, time.process_time()
        for kind, rows in self.calls:
            with self._as_in(kind):
                out = self.network(**self.inputs[kind, rows])[0]
                if kind == "training":
                    out.square().mean().backward()
        seconds, self.listening = time.process_time() - began, True
        for parameter in self.trained:
            parameter.grad = None  # of no concern to the framework's next update
        return seconds

    @contextlib.contextmanager
    def _as_in(self, kind):
        with torch.set_grad_enabled(kind == "training"):
            for layer in self.adapters:  # not by peft's method: it would freeze them, too
                layer._disable_adapters = kind == "reference"
            try:
                yield
            finally:
                for layer in self.adapters:
                    layer._disable_adapters = False

    def seen(self):
        return {
            "rows": dict(self.rows),
            "calls": dict(Counter(kind for kind, _ in self.calls)),
            "optimizer_steps": self.steps,
        }


class Turns:
    """The words between a framework's process and the one that compares. `words` and `answers` are files of lines."""

    def __init__(self, network, words, answers):
        self.meter, self.words, self.answers = Meter(network), words, answers
        self.word, self.began = "", None

    def wait(self):
        """Called between iterations: tells what the last one took, and waits for the next word.

        Returns:
            Whether there is to be another iteration.
        """
        ended = time.process_time(), time.perf_counter()
        self._tell(self._facts() if self.began is None else self._iteration(*ended))
        self.word = self.words.readline().strip()
        if not self.word:
            self.meter.close()
            return False
        self.meter.reset()
        self.began = time.process_time(), time.perf_counter()
        return True

    def _facts(self):
        return {
            "trained": sum(parameter.numel() for parameter in self.meter.trained),
            "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        }

    def _iteration(self, cpu, wall):
        spent = {"cpu": cpu - self.began[0], "wall": wall - self.began[1]}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # before the calls alone have their own
        alone = {"alone": self.meter.alone()} if self.word == ALONE else {}
        return spent | {"peak_mb": peak} | self.meter.seen() | alone

    def _tell(self, answer):
        print(json.dumps(answer), file=self.answers, flush=True)


def serve(run, *arguments):
    """`run(*arguments, words, answers)` on standard streams, one thread, and whatever it prints elsewhere."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):
        run(*arguments, sys.stdin, sys.__stdout__)
