"""The documentation as a site: `make docs` stages the pages of the repository, and Sphinx builds them."""
