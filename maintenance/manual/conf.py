"""Sphinx's configuration of the documentation's site: pages of Markdown, system fonts, nothing of a third party."""

project = "grpo-vram"
extensions = ["myst_parser"]
root_doc = "docs/README"
myst_heading_anchors = 6
nitpicky = True
smartquotes = False  # they make one dash of the two of an option

html_theme = "furo"
html_title = "grpo-vram"
html_static_path = ["style"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_extra_path = ["start"]
