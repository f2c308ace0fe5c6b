"""Files of one machine: written whole or not at all, read safely, locked, and in JSON with a checksum."""
