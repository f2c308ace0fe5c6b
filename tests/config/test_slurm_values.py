"""Values of Slurm's options: read in Slurm's own spelling, and refused before Slurm is asked."""

import pytest

from profiler.config.options.run_options import RunOptions, read_run_options
from profiler.domain.errors import UsageError
from profiler.domain.machines.engines import SlurmGpus, SlurmName, SlurmTime

DEFAULTS = {**vars(RunOptions()), "results_dir": "r", "engine": "slurm", "slurm_time": "01:00:00"}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        (90, 90),
        ("90:00", 90),
        ("0:61", 2),
        ("1:30:00", 90),
        ("0:00:01", 1),
        ("1-0", 1440),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("2-00:00:01", 2881),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text, minutes):
    assert read_run_options({**DEFAULTS, "slurm_time": text}).slurm_time == SlurmTime(minutes=minutes)


def test_a_time_limit_is_written_so_that_it_is_read_as_the_same():
    for minutes in (1, 60, 90, 6000):
        assert SlurmTime.parse(str(SlurmTime(minutes=minutes))) == SlurmTime(minutes=minutes)


@pytest.mark.parametrize("found", ["0", "00:00:00", "-1", "1h", "", "1:2:3:4", "1-2-3", True, 1.5, None, [1]])
def test_anything_else_is_no_time_limit(found):
    with pytest.raises(UsageError, match=r"slurm_time=.*: must be minutes, hours:minutes:seconds or "):
        read_run_options({**DEFAULTS, "slurm_time": found})


def test_gpus_have_a_number_and_may_have_a_kind():
    for found, wanted in ((1, SlurmGpus(kind="", count=1)), ("h100:2", SlurmGpus(kind="h100", count=2))):
        gpus = read_run_options({**DEFAULTS, "slurm_gpus_per_node": found}).slurm_gpus_per_node
        assert gpus == wanted
        assert str(gpus) == str(found)


@pytest.mark.parametrize("found", [0, "h100", "h100:0", "1:h100", "a b:1", "x:y:1", -1])
def test_anything_else_is_no_number_of_gpus(found):
    with pytest.raises(UsageError, match="must be a number of at least 1, or a kind and a number, such as h100:1"):
        read_run_options({**DEFAULTS, "slurm_gpus_per_node": found})


@pytest.mark.parametrize("found", ["a\n#SBATCH --uid=0", "a b", "-x", "$(id)", "", "'"])
def test_a_name_cannot_carry_anything_else_into_a_script(found):
    with pytest.raises(UsageError, match=r"slurm_partition=.*must be a name that Slurm knows"):
        read_run_options({**DEFAULTS, "slurm_partition": found})


def test_names_are_those_of_slurm():
    for found in ("gpu", "gpu-long,gpu_short", 123):
        assert read_run_options({**DEFAULTS, "slurm_account": found}).slurm_account == SlurmName(found)
