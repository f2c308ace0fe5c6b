"""The end of a run: tables, pages, and the table on the terminal."""

from pathlib import Path

from profiler.analysis.scripts import ordered_runs, run_lines
from profiler.command_line import print_error, print_line, print_text
from profiler.domain.script import ScriptRecord
from profiler.rendering.script_table import script_table
from profiler.storage.script_records import ScriptStore


def report_run(folder: Path, record: ScriptRecord) -> None:
    """Show `record`, and write the tables and pages of all runs in `folder`."""
    print_text(script_table(run_lines(record)))
    records, problems = ScriptStore(folder).read_all()
    for problem in problems:
        print_error(problem)
    ordered_runs(records)
    print_line(f"Page: {folder / 'report.html'}")
