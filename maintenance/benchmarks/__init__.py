"""What `maintenance.bench` measures."""
