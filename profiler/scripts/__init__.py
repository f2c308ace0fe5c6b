"""Running a training script unmodified, and recognising its phases from outside.

torch's global hooks and calls of libraries become phases and steps.
"""
