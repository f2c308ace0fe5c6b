"""Published rules that the estimate is compared with."""
