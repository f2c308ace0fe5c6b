"""A simulated sweep on two nodes of a Ray cluster has the same tables as on this machine alone.

`python tests/stress/ray_parity.py [WORD...]` runs `+grid=lora_vs_full` with these words with engine=local and
engine=ray, and compares all tables; times and the host are left out. It needs the extra ray (`make engines`).
"""

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from ray_nodes import RayNodes

TIMES = {"wall_s", "load_s", "host_peak_rss_bytes"}


def sweep(nodes: RayNodes, results: Path, *words: str) -> float:
    """Run the sweep in a process of its own; return its seconds."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "profiler.sweep", "+grid=lora_vs_full", "backend=simulated"]
    done = subprocess.run(
        [*command, f"results_dir={results}", *words],
        env=nodes.environment,
        cwd=nodes.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return time.monotonic() - began_s


def differences(one: Path, other: Path) -> tuple[list[str], int, list[str]]:
    """Return what differs between the tables of two folders, the number of compared values, and columns left out."""
    found, values, left_out = [], 0, set()
    names = sorted(path.name for path in one.glob("*.parquet"))
    if names != sorted(path.name for path in other.glob("*.parquet")) or not names:
        return [f"tables: {names}"], 0, []
    for name in names:
        tables = [pd.read_parquet(folder / name) for folder in (one, other)]
        if list(tables[0]) != list(tables[1]) or len(tables[0]) != len(tables[1]):
            found.append(f"{name}: {len(tables[0])} and {len(tables[1])} rows")
            continue
        for column in tables[0]:
            if column in TIMES:
                left_out.add(column)
                continue
            values += len(tables[0])
            if not tables[0][column].equals(tables[1][column]):
                found.append(f"{name}: {column}")
    return found, values, sorted(left_out)


def main(words: list[str]) -> int:
    """Compare and print what was compared."""
    with RayNodes() as nodes:
        for _ in range(2):
            nodes.add(cpus=1)
        results = {engine: nodes.folder / f"results-{engine}" for engine in ("local", "ray")}
        local_s = sweep(nodes, results["local"], "engine=local", *words)
        ray_s = sweep(nodes, results["ray"], "engine=ray", f"ray_address={nodes.address}", *words)
        grids = {engine: folder / "lora_vs_full" for engine, folder in results.items()}
        found, values, left_out = differences(grids["local"], grids["ray"])
        trials = len(list((grids["ray"] / "records").glob("*.json")))
    print(
        f"{trials} simulated trials: {local_s:.0f} s with engine=local, {ray_s:.0f} s with engine=ray on 2 nodes; "
        f"{values:,} values of the tables compared, {len(found)} columns differ (left out: {', '.join(left_out)})"
    )
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
