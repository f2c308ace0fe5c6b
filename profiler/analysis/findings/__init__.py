"""What a comparison says: limits, peaks, cards, shapes of steps, and the answers that come first."""
