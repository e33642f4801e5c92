"""The pages' HTML, CSS and scripts."""
