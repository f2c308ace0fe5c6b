"""A processor without a download, whose images have a stated number of patches."""

from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch
from transformers import BatchFeature, ProcessorMixin

_WORD = 3
"""A token of text."""


class SizedProcessor(ProcessorMixin):
    """Makes prompts of text and images of one size; a patch is a view of one number, so that no memory is needed.

    Each image is between two tokens of text, as in the templates of Qwen's models: transformers counts the images of a
    prompt by what separates them.

    Args:
        tokenizer: Decodes completions.
        text_tokens: Tokens of text of every prompt, two per image or more.
        images: Images of every prompt.
        tokens: Tokens of every image.
        merge: Patches of one token, in each direction.
        patch_values: Values of a patch.
        image_token: The token that stands for a part of an image.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        text_tokens: int,
        images: int,
        tokens: int,
        merge: int,
        patch_values: int,
        image_token: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.image_processor = None
        self.chat_template = ""
        self._kinds = [0, *[1] * tokens, 0] * images + [0] * (text_tokens - 2 * images)
        self._ids = [image_token if kind else _WORD for kind in self._kinds]
        self._images, self._grid, self._patch_values = images, _grid(tokens, merge), patch_values

    def apply_chat_template(self, conversation: Sequence[Any], **options: Any) -> Any:
        """Return the text of a conversation, or ids, masks and pixels of several."""
        if not options.get("tokenize"):
            return "prompt" if isinstance(conversation[0], dict) else ["prompt"] * len(conversation)
        rows = len(conversation)
        ids, kinds = ([list(each) for _ in range(rows)] for each in (self._ids, self._kinds))
        masks = [[1] * len(self._ids) for _ in range(rows)]
        return {"input_ids": ids, "attention_mask": masks, "mm_token_type_ids": kinds, **self._pixels(rows)}

    def __call__(self, *, text: Sequence[str], **_: Any) -> Any:
        """Return the tensors of a batch."""
        rows = len(text)
        ids = torch.tensor([self._ids] * rows)
        kinds = torch.tensor([self._kinds] * rows)
        masks = torch.ones_like(ids)
        return BatchFeature(
            {"input_ids": ids, "attention_mask": masks, "mm_token_type_ids": kinds, **self._pixels(rows)}
        )

    def batch_decode(self, sequences: Sequence[Any], **_: Any) -> list[str]:
        """Return a word per sequence."""
        return ["word"] * len(sequences)

    def _pixels(self, rows: int) -> dict[str, torch.Tensor]:
        images = rows * self._images
        height, width = self._grid
        pixels = torch.zeros(1, 1).expand(images * height * width, self._patch_values)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]] * images)}


def _grid(tokens: int, merge: int) -> tuple[int, int]:
    """Return height and width in patches of an image with so many tokens, as square as possible.

    By hand, 12 tokens, merged 2 x 2: 3 x 4 tokens, 6 x 8 patches.
    """
    height = next(side for side in range(isqrt(tokens), 0, -1) if tokens % side == 0)
    return height * merge, tokens // height * merge
