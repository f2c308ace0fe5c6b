"""The arguments of trl's trainers: their names, values and effects."""
