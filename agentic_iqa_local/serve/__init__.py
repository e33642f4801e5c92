"""The service: a page and an API over HTTP, and tools for language models over MCP."""
