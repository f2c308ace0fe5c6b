"""Small work with torch's own operations, to take facts of a card. It keeps no memory."""

import torch

_SIDE = 1024
"""Side of the multiplied squares: 2 MiB each in bfloat16, whole blocks of the allocator."""
_WIDTH, _HEADS, _TOKENS = 256, 4, 128


class TorchWork:
    """`CudaWork` on the first visible CUDA device, or on another device."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cuda", 0)

    def begin(self) -> None:
        """Create the context with `mem_get_info`; `torch.cuda.init` does not."""
        torch.cuda.init()
        torch.cuda.mem_get_info(self._device)

    def product(self) -> int:
        """Multiply two squares in bfloat16."""
        one = torch.zeros(_SIDE, _SIDE, dtype=torch.bfloat16, device=self._device)
        other = torch.zeros(_SIDE, _SIDE, dtype=torch.bfloat16, device=self._device)
        result = one @ other
        return one.nbytes + other.nbytes + result.nbytes

    def training_step(self) -> None:
        """Train one transformer layer with attention, autocast and fused AdamW."""
        layer = torch.nn.TransformerEncoderLayer(_WIDTH, _HEADS, dropout=0.0, batch_first=True, device=self._device)
        optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            result = layer(torch.zeros(2, _TOKENS, _WIDTH, device=self._device))
            loss = result.float().log_softmax(-1).sum()
        loss.backward()
        optimizer.step()
