"""What the commands say of many combinations of keys is what they said before the table of constraints was made.

After a change that is meant, `CONSTRAINTS_KEPT=new` writes the file again; the difference shows what is said now.
"""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

from constraint_walk import BASES_PER_PAIR, cases, said

KEPT = Path(os.environ.get("CONSTRAINTS_FILE", Path(__file__).with_name("said.json")))


def test_every_combination_is_answered_as_before():
    digest, counts, number = hashlib.sha256(), Counter(), 0
    for values in cases():
        number += 1
        sentences = {who: sorted(fault.sentence() for fault in faults) for who, faults in said(values).items()}
        counts.update(f"{who}: {each}" for who, found in sentences.items() for each in found)
        digest.update(json.dumps([values, sentences], sort_keys=True).encode())
    found = {"cases": number, "digest": digest.hexdigest(), "sentences": dict(sorted(counts.items()))}
    if os.environ.get("CONSTRAINTS_KEPT") == "new":
        KEPT.write_text(json.dumps(found, indent=0) + "\n")
    kept = json.loads(KEPT.read_text())
    assert found["sentences"] == kept["sentences"]
    assert found == kept, f"on {BASES_PER_PAIR} bases per pair"
