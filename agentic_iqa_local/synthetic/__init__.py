"""Synthetic distortions of clean photographs, with the quality that full-reference metrics give them."""
