"""The HTTP service: a page and an API, on models that are loaded once in a process of their own."""
