"""The version of the emulation, which records carry, and the versions of torch that it was tried with."""

EMULATION_VERSION = "1"
"""Raised when a change of the driver or of the values changes emulated numbers."""

TRIED_TORCH = ("2.11", "2.12", "2.13")
"""Minor versions of torch whose entry points and figures were looked at. Others run with `strict=false`."""
