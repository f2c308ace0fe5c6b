"""What the campaign's trials are compared with."""
