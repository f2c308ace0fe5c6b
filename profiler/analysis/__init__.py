"""From stored frames to a `SweepReport`: the sections, rows and cells of the comparison, and every statistic.

What a report shows is computed once, as one value; terminal, Markdown, HTML and figures only lay it out.
"""
