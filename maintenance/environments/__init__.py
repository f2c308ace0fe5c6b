"""What environments contain: packages of tools, and compiled code of the own one."""
