"""Look-ups for claims of public texts: names in libraries, configurations of verl, gradients on the CPU."""
