"""The passes of a decoder: layer by layer in stages, or operation by operation."""
