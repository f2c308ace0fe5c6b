"""Ask torch's CUDA build which attention kernel it takes, and add the answers of this card to the table.

Run once per card: ``python record_attention_choices.py attention_choices.json.gz``
"""

import gzip
import json
import sys
from pathlib import Path

import torch
from attention_requests import BLOCKS, LETTER_OF, arguments, points


def answers() -> list[str]:
    """Return one string of letters per block."""
    found = []
    for axes in BLOCKS:
        letters = []
        for point in points(axes):
            given, named = arguments(point, "cuda")
            letters.append(LETTER_OF[torch._fused_sdp_choice(*given, **named)])
        found.append("".join(letters))
    return found


def main(path: Path) -> None:
    """Add the answers of the present card to the table at `path`."""
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    table = {"versions": versions, "axes": BLOCKS, "answers": {}}
    if path.exists():
        stored = json.loads(gzip.decompress(path.read_bytes()))
        if (stored["versions"], stored["axes"]) == (versions, BLOCKS):
            table = stored
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    table["answers"][capability] = answers()
    path.write_bytes(gzip.compress(json.dumps(table).encode(), mtime=0))
    print(capability, {block: len(letters) for block, letters in enumerate(table["answers"][capability])})


main(Path(sys.argv[1]))
