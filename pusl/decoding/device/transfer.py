"""Host arrays -> the device, and device tensors -> host arrays, neither of which makes the device wait."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device; on CUDA through pinned memory, so that the host does not wait."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Mail:
    """Tensors on their way from the device to the host, oldest first."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.letters: deque[tuple[Tensor, Any, Any]] = deque()

    def __len__(self) -> int:
        return len(self.letters)

    def post(self, tensor: Tensor, note: Any = None) -> None:
        """Starts a copy; `note` comes back with it."""
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.device.type == "cuda")
        here.copy_(tensor, non_blocking=True)
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))
        self.letters.append((here, event, note))

    def take(self) -> tuple[np.ndarray, Any]:
        """The oldest array, as soon as it has arrived."""
        here, event, note = self.letters.popleft()
        if event is not None:
            event.synchronize()
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return here.numpy(), note
