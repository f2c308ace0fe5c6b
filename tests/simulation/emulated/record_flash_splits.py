"""Record the scratch that FlashAttention's forward takes on this card, and add it to the table.

Run once per card: ``python record_flash_splits.py flash_splits.json.gz``
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from memory_events import add_card, events, given_back

AXES: dict[str, list[Any]] = {
    "rows": [1, 2, 4, 32],
    "heads": [[16, 16], [14, 2], [32, 8], [25, 25]],
    "query_tokens": [1, 2, 64, 65, 300],
    "key_tokens": [1, 64, 129, 300, 1000, 8200],
    "width": [8, 32, 64, 96, 160, 192, 200, 256],
    "dropout": [0.0],
}
WITH_DROPOUT = AXES | {"rows": [2], "query_tokens": [1, 64], "width": [64, 256], "dropout": [0.1]}


def scratch(axes: dict[str, list[Any]]) -> Iterator[list[int]]:
    """Yield what each request takes and gives back."""
    for rows, (heads, key_heads), queries, keys, width, dropout in product(*axes.values()):
        query = torch.empty((rows, heads, queries, width), dtype=torch.bfloat16, device="cuda")
        key = torch.empty((rows, key_heads, keys, width), dtype=torch.bfloat16, device="cuda")
        attend = torch.ops.aten._scaled_dot_product_flash_attention
        yield given_back(events(lambda: attend(query, key, key, dropout)))  # noqa: B023


with torch.no_grad():
    add_card(Path(sys.argv[1]), [AXES, WITH_DROPOUT], [list(scratch(axes)) for axes in (AXES, WITH_DROPOUT)])
