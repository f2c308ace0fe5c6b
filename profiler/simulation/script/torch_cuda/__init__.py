"""`torch.cuda` as a script sees it on the simulated GPU."""
