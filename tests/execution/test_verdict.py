from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from profiler.domain.runs.outcome import Status
from profiler.execution.processes.child import STDERR_LINES, judge, last_lines


@given(st.integers(-64, 255) | st.none(), st.booleans())
def test_every_end_has_an_outcome_with_a_reason(exit_code, timed_out):
    outcome = judge(
        exit_code=exit_code, timed_out=timed_out, timeout_s=1.0, wall_s=0.5, stderr_path=Path("/no/such/file")
    )

    assert outcome.message
    assert outcome.status in {Status.FAILED, Status.KILLED, Status.TIMEOUT, Status.HOST_OOM}
    assert (outcome.status is Status.TIMEOUT) == timed_out


def test_only_the_last_lines_of_a_long_output_are_kept(tmp_path):
    path = tmp_path / "stderr"
    path.write_text("\n".join(f"line {number}" for number in range(100_000)))

    lines = last_lines(path).splitlines()

    assert len(lines) == STDERR_LINES
    assert lines[-1] == "line 99999"
