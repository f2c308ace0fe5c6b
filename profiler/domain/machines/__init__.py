"""Where runs take place: addresses, engines, shards, and what is installed there."""
