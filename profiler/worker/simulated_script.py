"""A script on a simulated card."""

from collections.abc import Callable

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.outcome import Outcome
from profiler.domain.script import ScriptJob
from profiler.scripts.session import ScriptSession


def simulated_outcome(job: ScriptJob, run: Callable[[ScriptSession], Outcome]) -> Outcome:
    """Return the outcome of `job` on its card.

    Args:
        job: The script and its options.
        run: Runs the script in a session, and returns its outcome without memory.

    Raises:
        UnsupportedTrialError: The simulation does not support something that the script does.
    """
    del run
    raise UnsupportedTrialError(f"the simulation of {job.spec.script} is not possible yet")
