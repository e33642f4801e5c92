"""CUDA cards that are faked at torch's own functions: what is put on one stays on the CPU."""

from types import SimpleNamespace

import torch

GIB = 2**30
FULL = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU {} has a total capacity of {:.2f} GiB of which 0 bytes is free."
BROKEN = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in https://docs.nvidia.com"


class Cards:
    """CUDA with cards of so many GiB, all free. What is put on one stays on the CPU, so that all else runs as it is; a
    module that is larger than its card raises torch's error."""

    capability = (8, 6)
    lost = False

    def __init__(self, patch, *sizes):
        self.patch, self.total = patch, [int(size * GIB) for size in sizes]
        for name, answer in {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: len(sizes),
            "get_device_capability": lambda device: self.capability,
            "get_device_properties": self.properties,
            "mem_get_info": lambda device: (self.total[self.index(device)],) * 2,
            "empty_cache": lambda: None,
            "synchronize": lambda device: self.check(),
        }.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr("agentic_iqa_local.devices._without_driver", lambda: False)
        for kind in (torch.Tensor, torch.nn.Module):
            patch.setattr(kind, "to", self.moved(kind.to))

    @staticmethod
    def index(device) -> int:
        return device if isinstance(device, int) else torch.device(device).index

    def properties(self, device):
        number = self.index(device)
        return SimpleNamespace(name=f"Card {number}", uuid="0", total_memory=self.total[number])

    def moved(self, real):
        def to(moving, *where, **options):
            options = {key: self.place(moving, one) for key, one in options.items()}
            return real(moving, *(self.place(moving, one) for one in where), **options)

        return to

    def place(self, moving, where):
        if not str(where).startswith("cuda"):
            return where
        self.check()
        number = self.index(str(where))
        weights = moving.parameters() if isinstance(moving, torch.nn.Module) else ()
        if sum(weight.nbytes for weight in weights) > self.total[number]:
            raise torch.OutOfMemoryError(FULL.format(number, self.total[number] / GIB))
        return "cpu"

    def check(self):
        if self.lost:
            raise torch.AcceleratorError(BROKEN)

    def fail(self, owner, name, which, error):
        """Lets one call of a function raise an error, the first of which is 1."""
        real, calls = getattr(owner, name), []

        def called(*args, **options):
            calls.append(1)
            if len(calls) == which:
                self.lost |= isinstance(error, torch.AcceleratorError)
                raise error
            self.check()
            return real(*args, **options)

        self.patch.setattr(owner, name, called)
