"""One result as text, a table or a page."""
