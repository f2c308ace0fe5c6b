"""Who is ranked, and asking them."""
