"""Running a training script unmodified, and recognising its phases from outside."""
