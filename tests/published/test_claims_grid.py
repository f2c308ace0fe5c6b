"""`sweeps/grid/claims.yaml` has the trials of the claims. After a change of the claims: run this file."""

from pathlib import Path

from maintenance.samples.claims_grid import claims_grid
from profiler.storage.foreign.published import read_published_claims

GRID = Path(__file__).parents[2] / "sweeps" / "grid" / "claims.yaml"


def test_the_grid_of_the_claims_is_current():
    assert GRID.read_text(encoding="utf-8") == claims_grid(read_published_claims())


if __name__ == "__main__":
    GRID.write_text(claims_grid(read_published_claims()), encoding="utf-8")
