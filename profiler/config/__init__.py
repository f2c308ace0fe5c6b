"""From untyped keys to a typed specification, and from a grid with overrides to trials.

The identity of a trial, and which trials need at most as much memory as others. Options of a run are one value, made
here and carried whole to the worker; commands declare theirs as fields, and readers, help texts and pages derive. The
files of trl and of verl are read here, with what their releases changed and what each field does to memory. YAML,
JSON and Python of others are parsed in one place, within limits of size, depth and number of values. Every fault
names the key, the value, what is allowed and a hint.
"""
