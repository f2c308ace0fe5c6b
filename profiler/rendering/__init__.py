"""Sections, rows and statistics to a terminal table, a page and figures. Computes nothing."""
