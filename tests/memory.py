"""Peak memory of tensors made in a block, on any device: every storage is counted while something holds it."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.live or self.live[key][0].expired():
                    self.drop(key)
                    self.live[key] = (StorageWeakRef(storage), storage.nbytes())
                    self.now += storage.nbytes()
        if self.now > self.peak:
            for key in [key for key, (reference, _) in self.live.items() if reference.expired()]:
                self.drop(key)
            self.peak = max(self.peak, self.now)
        return out

    def drop(self, key):
        self.now -= self.live.pop(key, (None, 0))[1]
