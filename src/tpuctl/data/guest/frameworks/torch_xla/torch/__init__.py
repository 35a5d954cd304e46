"""A stand-in for PyTorch on a sandbox worker: tensors of one value, for the stand-in of PyTorch/XLA."""

from __future__ import annotations

from sandbox_chips import Tensor as _Tensor

__version__ = "2.7.0"
bfloat16, float32 = "bfloat16", "float32"


class Tensor(_Tensor):
    """A tensor of PyTorch, on a device of PyTorch/XLA."""

    def __matmul__(self, other: Tensor) -> Tensor:
        rows, inner = self.shape
        self.device.multiply(2 * rows * inner * other.shape[1])
        return Tensor(self.value * other.value * inner, (rows, other.shape[1]), self.dtype, self.device)


def ones(size: tuple[int, ...], *, dtype: str = float32, device: object = None) -> Tensor:
    """Return a tensor of ones."""
    return Tensor(1.0, size, dtype, device)


def full(size: tuple[int, ...], fill_value: float, *, dtype: str = float32, device: object = None) -> Tensor:
    """Return a tensor of one value."""
    return Tensor(fill_value, size, dtype, device)
