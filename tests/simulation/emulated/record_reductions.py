"""Record what reductions ask of the allocator on this card, and add it to the table.

Run once per card: ``python record_reductions.py reductions.json.gz``
"""

import sys
from pathlib import Path

from memory_events import add_card, events
from reduction_requests import points, reduce

found = []
for point in points():
    values, run = reduce(point, "cuda")
    found.append(events(run))
    del values, run
add_card(Path(sys.argv[1]), "reduction_requests.points", found)
