"""The model of the caching allocator: blocks, pools, segments, expandable segments, and what a full card returns."""
