"""The page in the browser: static files in which Python runs, so that no server is needed and nothing is uploaded."""
