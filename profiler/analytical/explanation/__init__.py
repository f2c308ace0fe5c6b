"""An estimate with its reasons, and the cards that it fits."""
