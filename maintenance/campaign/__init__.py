"""What the campaign on a real card needs beside sweeps: facts of the card, the allocator's truth, two comparisons."""
