"""Peak memory of tensors, on any device: every storage is counted while something holds it."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Of tensors made in its block, and of those that are `there` before it."""

    def __init__(self, there=()):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0
        for tensor in there:
            self.see(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):  # arguments too: FSDP2 gives and takes storages their memory
            if isinstance(tensor, torch.Tensor):
                self.see(tensor)
        if self.now > self.peak:
            self.count()
        return out

    def see(self, tensor):
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()  # a shard is what a process holds
        key, size = storage._cdata, storage.nbytes()
        if key not in self.live or self.live[key][0].expired():
            self.drop(key)
            self.live[key] = (StorageWeakRef(storage), size)
            self.now += size
        elif self.live[key][1] != size:
            self.now += size - self.live[key][1]
            self.live[key] = (self.live[key][0], size)

    def count(self):
        """Forget what is gone, and look again at what is there."""
        for key, (reference, size) in list(self.live.items()):
            if reference.expired():
                self.drop(key)
            else:
                storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
                if storage is None:
                    self.drop(key)
                elif storage.nbytes() != size:
                    self.now += storage.nbytes() - size
                    self.live[key] = (reference, storage.nbytes())
        self.peak = max(self.peak, self.now)

    def restart(self):
        """The peak from here on."""
        self.peak = 0
        self.count()

    def drop(self, key):
        self.now -= self.live.pop(key, (None, 0))[1]
