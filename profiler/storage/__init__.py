"""Storage on disk: one record file per trial, the parquet tables of a grid, and published figures.

Records: one JSON file each with a checksum, written to a temporary name, synchronised and renamed. A sweep resumes
from them alone. A damaged one is moved to `records/set_aside/`, and a line says so; one of a newer schema ends the
command with exit code 2 and is not touched.

Tables: records are read one after the other, and their rows wait on the disk until all specifications are known. Rows
of trials whose record is not in the folder are carried over. A record that no table can hold is left out and named,
with exit code 3. A trial that was simulated again replaces its old row; measured rows are never replaced by another
name. Each column declares its meaning, which values it allows, and what its rows sum to; this is checked batch by
batch before a table is shown or added to. A folder that cannot be read, is damaged or is newer is refused before
anything starts.

A store that several machines share has one object per record, and claims trials by conditional creation. Files that
others named are opened in one place, regular ones only.
"""
