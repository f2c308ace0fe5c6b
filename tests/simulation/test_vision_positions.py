"""The positions that transformers gives a prompt with several images, as the processor without a download makes it."""

import pytest
import torch
from transformers import Qwen2VLConfig, Qwen2VLModel

from maintenance.vision.processor import SizedProcessor
from maintenance.vision.trial import _SPECIAL

TEXT, TOKENS, MERGE = 9, 12, 2


@pytest.mark.parametrize("images", [1, 2])
def test_each_image_has_its_own_positions(images):
    processor = SizedProcessor(
        None,
        text_tokens=TEXT,
        images=images,
        tokens=TOKENS,
        merge=MERGE,
        patch_values=1,
        image_token=_SPECIAL["image_token_id"],
    )
    batch = processor(text=["prompt"] * 2)
    assert batch["input_ids"].shape == (2, TEXT + images * TOKENS)
    positions, deltas = positions_of(batch)
    # By hand: an image of 3 x 4 tokens moves what follows by 4, and is 12 tokens long.
    assert deltas.flatten().tolist() == [-(TOKENS - 4) * images] * 2
    starts = positions[0, 0][batch["mm_token_type_ids"][0] == 1]
    assert len(starts) == images * TOKENS
    assert len(set(starts.tolist())) == images


def positions_of(batch):
    model = Qwen2VLModel.__new__(Qwen2VLModel)
    torch.nn.Module.__init__(model)
    model.config = Qwen2VLConfig(vision_config={"spatial_merge_size": MERGE})
    return model.get_rope_index(
        batch["input_ids"],
        batch["mm_token_type_ids"],
        image_grid_thw=batch["image_grid_thw"],
        attention_mask=batch["attention_mask"],
    )
