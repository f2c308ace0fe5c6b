"""Pages that are made from declarations and kept rows."""
