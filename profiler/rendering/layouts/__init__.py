"""The back ends: each lays any document out."""
