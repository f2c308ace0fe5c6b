"""Trials next to each other: cells, their order, and the tables that are made of them."""
